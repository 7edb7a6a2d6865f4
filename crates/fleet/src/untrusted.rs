//! Opens files of untrusted processes: without following links, without blocking, and without
//! looking up a name twice.
//!
//! The owner of a folder can replace anything in it between two system calls. So an
//! [`UntrustedFolder`] is held by its descriptor, an [`UntrustedFile`] is checked by its own, and
//! later reads use the same descriptor. An [`UntrustedError`] describes what was found instead of
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

/// Limit of the entries that [`UntrustedFolder::clear`] visits, as the owner may keep adding more.
const CLEARED_MAX: usize = 64;
/// The required owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The file must belong to this user and have only one name. A second name could belong to a
    /// file that the user may not read.
    Only(u32),
    /// Any owner is accepted; the check only ensures safe reading.
    Anyone,
}

/// The requirements for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub owner: Owner,
    pub size_max: Bytes,
}

/// A folder held by its descriptor. Renaming or replacing it has no effect on later operations.
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
    /// Symbolic links are followed only if the process's user could not have created them: links of
    /// root in folders that only others may write.
    ///
    /// # Errors
    /// Fails if a component is missing, is not a folder, is a link of the user, or is closed to the
    /// user.
    pub fn open(root: &Path, path: &Path, who: &Credentials) -> Result<Self, UntrustedError> {
        let descriptor = walk::open(root, path, who)?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Creates a folder that only `who` may use. `who` must be allowed to create one here.
    ///
    /// # Errors
    /// Fails if `who` may not write here, if the name exists, or if the new folder was replaced
    /// immediately.
    pub fn make(&self, name: &str, who: &Credentials) -> Result<Self, UntrustedError> {
        let path = self.path.join(name);
        let own = rustix::fs::fstat(&self.descriptor)
            .map_err(UntrustedError::io(&self.path, "look at"))?;
        if !who.may(&own, WRITE | ENTER) {
            return Err(UntrustedError::Unwritable { path: self.path.clone(), uid: who.uid });
        }
        rustix::fs::mkdirat(&self.descriptor, name, Mode::RWXU)
            .map_err(UntrustedError::io(&path, "make the folder"))?;
        let made = self.enter(name).and_then(|folder| folder.give(who).map(|()| folder));
        if made.is_err() {
            // Removes only an empty folder, so nothing else can be lost.
            let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR);
        }
        made
    }

    /// Opens the regular file `name`; `None` if the name does not exist. Never blocks: a pipe or a
    /// device is detected before it is opened.
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
        // Opens the same file for reading by its descriptor, not by its name. A lease on the file
        // must not block us either.
        let file = match walk::reopen(&looked) {
            Ok(file) => file,
            Err(Errno::AGAIN) => return Err(UntrustedError::Leased { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(UntrustedError::io(&path, "look at"))?;
        check(&path, &stat, expected)?;
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

    /// Whether `name` in this folder still is the folder `other`.
    pub fn holds(&self, name: &str, other: &Self) -> bool {
        let here = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
        let held = rustix::fs::fstat(&other.descriptor);
        here.is_ok_and(|here| held.is_ok_and(|held| identity(&here) == identity(&held)))
    }

    /// Removes the folder `other`, which was created here as `name`, with the files of `uid` in it.
    /// Returns whether it is gone. Entries of other users, subfolders, and a replacement folder
    /// stay.
    pub fn remove(&self, name: &str, other: &Self, uid: u32) -> bool {
        other.clear(uid);
        // If the owner replaces the folder now, at worst another empty folder is removed.
        self.holds(name, other)
            && rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR).is_ok()
    }

    /// Removes entries that are not folders and belong to `uid`, among those that exist at the
    /// start.
    fn clear(&self, uid: u32) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.descriptor) else { return };
        for entry in entries.flatten().take(CLEARED_MAX) {
            let name = entry.file_name();
            let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
            let is_users =
                stat.is_ok_and(|stat| stat.st_uid == uid && kind(&stat) != FileType::Directory);
            if is_users {
                // Removes the directory entry, never the target of a link. Its owner could remove
                // it as well.
                let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
            }
        }
    }

    /// Opens the subfolder `name`.
    ///
    /// # Errors
    /// Fails if it does not exist, or if the name belongs to another kind of entry.
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

    /// Gives the folder, which was just created, to `who`.
    ///
    /// Creating and opening are two steps. If the folder is not empty or not ours, it was replaced.
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
        // Wide enough for the type on every platform, which differs.
        let names = u128::from(found.st_nlink);
        // A file that was removed meanwhile has no name, and can still be read.
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
