//! Opens files of untrusted processes without following links, without blocking, and without
//! looking up a name twice.
//!
//! The owner of a folder can replace anything in it between two system calls. So an
//! [`UntrustedFolder`] holds the descriptor of the folder, and an [`UntrustedFile`] is checked and
//! read through one descriptor. An [`UntrustedError`] describes the entry that was found instead of
//! the expected file.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;
use schema::Bytes;

use crate::credentials::{self, ENTER, WRITE};

mod copying;
mod error;
mod file_kind;
mod own;
mod trusted;
mod walk;

pub use crate::credentials::Credentials;
pub use copying::{Copying, Insertion};
pub use error::UntrustedError;
use file_kind::{kind, kind_name};
pub use own::{MissingFolder, OwnFolder};
pub use rustix::fs::OFlags;
pub use trusted::{Privacy, open_trusted, read_trusted};
use walk::Mounts;

/// Maximum number of entries that [`UntrustedFolder::clear`] visits, because the owner may keep
/// adding entries.
const CLEARED_MAX: usize = 64;
/// The owner that a file must have to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The file must belong to this user and have only one name (hard link). Otherwise a process
    /// could create a second name for a file that it may not read.
    Only(u32),
    /// Any owner is accepted, because the check only ensures that reading is safe.
    Anyone,
}

/// The requirements that a file must meet to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub owner: Owner,
    pub size_max: Bytes,
}

/// An open folder of an untrusted user. Operations use its descriptor, so renaming or replacing the
/// folder has no effect on them.
#[derive(Debug)]
pub struct UntrustedFolder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// A checked regular file, held by its descriptor.
#[derive(Debug)]
pub struct UntrustedFile {
    file: fs::File,
    path: PathBuf,
    size: u64,
    modified: (i64, u64),
}

impl UntrustedFolder {
    /// Opens the absolute `path` below `root`, component by component, on behalf of a process with
    /// the credentials `who`. `root` is trusted: `/`, or `/proc/PID/root` for the process's view.
    ///
    /// A symbolic link is followed only if the process's user could not have created it, that is,
    /// if root owns it and the user may not write the folder that contains it.
    ///
    /// # Errors
    /// Fails if a component of `path` is missing, is not a folder, is a link that the user could
    /// have created, or may not be searched by the user.
    pub fn open(root: &Path, path: &Path, who: &Credentials) -> Result<Self, UntrustedError> {
        let descriptor = walk::open(root, path, who)?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Creates the subfolder `name` for `who` alone. `who` must be allowed to create entries in
    /// this folder.
    ///
    /// # Errors
    /// Fails if `who` may not write to this folder, if the name exists, or if another process
    /// replaced the new folder immediately.
    pub fn make(&self, name: &str, who: &Credentials) -> Result<Self, UntrustedError> {
        let path = self.path.join(name);
        let own = rustix::fs::fstat(&self.descriptor)
            .map_err(UntrustedError::io(&self.path, "look at"))?;
        // This process may be root, for whom the kernel checks no permissions, so those of the user
        // are checked here.
        if !who.may(&own, WRITE | ENTER) {
            return Err(UntrustedError::Unwritable { path: self.path.clone(), uid: who.uid });
        }
        rustix::fs::mkdirat(&self.descriptor, name, Mode::RWXU)
            .map_err(UntrustedError::io(&path, "make the folder"))?;
        let made = self.enter(name).and_then(|folder| folder.give(who).map(|()| folder));
        if made.is_err() {
            // `REMOVEDIR` removes only an empty folder, so no file can be lost.
            let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR);
        }
        made
    }

    /// Opens the regular file `name`, or returns `None` if the name does not exist. The call never
    /// blocks, because pipes and devices are detected before they are opened.
    ///
    /// # Errors
    /// Fails if the name belongs to another kind of entry, or to a file that does not meet
    /// `expected`.
    pub fn file(
        &self,
        name: &str,
        expected: &Expected,
    ) -> Result<Option<UntrustedFile>, UntrustedError> {
        let path = self.path.join(name);
        // Opening with `O_PATH` has no effect on the file.
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let looked = match walk::open_name(&self.descriptor, name, flags, Mounts::Refuse) {
            Ok(looked) => looked,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::XDEV) => return Err(UntrustedError::Mounted { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let before = rustix::fs::fstat(&looked).map_err(UntrustedError::io(&path, "look at"))?;
        check(&path, &before, expected)?;
        // Opens the same file for reading through its descriptor, because the name may refer to
        // another file by then. `reopen` does not wait if another process holds a lease on the
        // file.
        let file = match walk::reopen(&looked) {
            Ok(file) => file,
            Err(Errno::AGAIN) => return Err(UntrustedError::Leased { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(UntrustedError::io(&path, "look at"))?;
        check(&path, &stat, expected)?;
        // Both descriptors must refer to the same file, because only the first one was checked
        // before opening.
        if identity(&stat) != identity(&before) {
            return Err(UntrustedError::Changed { path });
        }
        let (size, modified) = (length(&stat), modified(&stat));
        Ok(Some(UntrustedFile { file: file.into(), path, size, modified }))
    }

    /// Returns the size of the regular file `name` without opening it; `None` if the name does not
    /// exist.
    ///
    /// # Errors
    /// Fails if the name belongs to another kind of entry, or to a file that does not meet
    /// `expected`.
    pub fn size(&self, name: &str, expected: &Expected) -> Result<Option<u64>, UntrustedError> {
        let path = self.path.join(name);
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => check(&path, &found, expected).map(|()| Some(length(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(UntrustedError::io(&path, "look at")(errno)),
        }
    }

    /// Whether the entry `name` of this folder still is the folder `other`.
    pub fn holds(&self, name: &str, other: &Self) -> bool {
        let here = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
        let held = rustix::fs::fstat(&other.descriptor);
        here.is_ok_and(|here| held.is_ok_and(|held| identity(&here) == identity(&held)))
    }

    /// Removes the folder `other`, which was created here as `name`, with the files of `uid` in it.
    /// Returns whether the folder was removed. Entries of other users, subfolders, and a folder
    /// that replaced `other` are kept.
    pub fn remove(&self, name: &str, other: &Self, uid: u32) -> bool {
        other.clear(uid);
        // If the owner replaces the folder after this check, at worst another empty folder is
        // removed.
        self.holds(name, other)
            && rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR).is_ok()
    }

    /// Removes entries that belong to `uid` and are not folders. Entries added during the call may
    /// be kept.
    fn clear(&self, uid: u32) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.descriptor) else { return };
        for entry in entries.flatten().take(CLEARED_MAX) {
            let name = entry.file_name();
            let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
            let is_users =
                stat.is_ok_and(|stat| stat.st_uid == uid && kind(&stat) != FileType::Directory);
            if is_users {
                // `unlinkat` removes the directory entry, never the target of a link. The owner of
                // the entry could remove it as well, so nothing is gained by an attack.
                let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
            }
        }
    }

    /// Opens the subfolder `name`.
    ///
    /// # Errors
    /// Fails if the subfolder does not exist, or if the name belongs to another kind of entry.
    pub fn enter(&self, name: &str) -> Result<Self, UntrustedError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match walk::open_name(&self.descriptor, name, flags, Mounts::Refuse) {
            Ok(descriptor) => Ok(Self { descriptor, path }),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV) => {
                Err(UntrustedError::Replaced { path })
            }
            Err(errno) => Err(UntrustedError::io(&path, "open")(errno)),
        }
    }

    /// Makes `who` the owner of this folder, which was just created.
    ///
    /// Another process may replace the folder between its creation and its opening. The folder was
    /// replaced if it is not empty or does not belong to this process's user.
    fn give(&self, who: &Credentials) -> Result<(), UntrustedError> {
        let look = || rustix::fs::fstat(&self.descriptor);
        let stat = look().map_err(UntrustedError::io(&self.path, "look at"))?;
        if stat.st_uid != credentials::own_uid() || !self.is_empty() {
            return Err(UntrustedError::Replaced { path: self.path.clone() });
        }
        if stat.st_uid == who.uid {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
        rustix::fs::fchown(&self.descriptor, Some(uid), Some(gid))
            .map_err(UntrustedError::io(&self.path, "give the folder to the process's user"))
    }

    fn is_empty(&self) -> bool {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.descriptor) else { return false };
        let mut names = entries.flatten().map(|entry| entry.file_name().to_owned());
        names.all(|name| matches!(name.to_bytes(), b"." | b".."))
    }
}

impl UntrustedFile {
    /// Returns the size at the time of opening.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads at most `count` bytes from the start.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn head(&self, count: u64) -> Result<Vec<u8>, UntrustedError> {
        let mut bytes = vec![0; usize::try_from(count.min(self.size)).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(UntrustedError::io(&self.path, "read")(error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Returns a reader of the content, limited to the size at the time of opening.
    pub fn into_reader(self) -> impl Read {
        self.file.take(self.size)
    }

    /// Whether the file is unchanged since it was opened.
    fn is_unchanged(&self) -> bool {
        let now = rustix::fs::fstat(self.file.as_fd());
        now.is_ok_and(|now| length(&now) == self.size && modified(&now) == self.modified)
    }
}

fn check(path: &Path, found: &Stat, expected: &Expected) -> Result<(), UntrustedError> {
    let path = || path.to_owned();
    if kind(found) != FileType::RegularFile {
        return Err(UntrustedError::Kind { path: path(), expected: "file", got: kind_name(found) });
    }
    if let Owner::Only(uid) = expected.owner {
        if found.st_uid != uid {
            return Err(UntrustedError::Owner { path: path(), expected: uid, got: found.st_uid });
        }
        // The type of `st_nlink` differs between platforms, and `u128` can hold all of them.
        let names = u128::from(found.st_nlink);
        // A file that was removed since it was opened has no name, but it can still be read.
        if names > 1 {
            return Err(UntrustedError::Names { path: path(), got: names });
        }
    }
    let (size_max, got) = (expected.size_max, Bytes(length(found)));
    if got.0 > size_max.0 {
        return Err(UntrustedError::Size { path: path(), size_max, got });
    }
    Ok(())
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn length(found: &Stat) -> u64 {
    u64::try_from(found.st_size).unwrap_or(0)
}

fn modified(found: &Stat) -> (i64, u64) {
    (found.st_mtime, found.st_mtime_nsec)
}

#[cfg(test)]
mod tests;
