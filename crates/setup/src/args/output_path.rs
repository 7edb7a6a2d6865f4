//! A path that a command writes, by what may stand there already.

use std::path::PathBuf;

/// A path that a command writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPath {
    /// A file, new or replaced; a pipe or a device is written where it is.
    File(PathBuf),
    /// A file, new or replaced. A pipe or a device would be replaced too, so it is refused.
    RegularFile(PathBuf),
    /// A folder, new or filled.
    Folder(PathBuf),
}
