//! A path that a command writes, and the kinds of files that it may replace.

use std::path::PathBuf;

/// A path that a command writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPath {
    /// A file, which is created or replaced. A pipe or a device is written in place.
    File(PathBuf),
    /// A file, which is created or replaced. A pipe or a device is refused, because it would be
    /// replaced too.
    RegularFile(PathBuf),
    /// A folder, which may exist already.
    Folder(PathBuf),
}
