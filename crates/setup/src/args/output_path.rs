//! A path to which a command writes, and the kinds of files that it may replace.

use std::path::PathBuf;

/// A path to which a command writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPath {
    /// A file that is created or replaced. A pipe or a device is written in place.
    File(PathBuf),
    /// A file that is created or replaced. A pipe or a device is rejected, because it would be
    /// replaced too.
    RegularFile(PathBuf),
    /// A folder that may already exist.
    Folder(PathBuf),
    /// A folder that may already exist, inside a folder that must exist.
    FolderBelow(PathBuf),
}
