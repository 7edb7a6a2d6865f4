//! Kinds of directory entries, and their names in messages.

use rustix::fs::{FileType, Stat};

pub(super) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

pub(super) fn kind_name(found: &Stat) -> &'static str {
    match kind(found) {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something of an unknown kind",
    }
}
