//! Files of a process that is not trusted: opened without following links, without blocking and
//! without believing a name twice.
//!
//! The owner of a folder can replace anything in it between two system calls. So a
//! [`UntrustedFolder`] is held by its descriptor, a [`UntrustedFile`] is checked by its own, and
//! whatever is read or copied later is read through that same descriptor. What may be wrong with a
//! file is an [`UntrustedError`] that says what was found in its place. Knows nothing of traces.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;
use schema::Bytes;
use serde::{Deserialize, Serialize};

use crate::process;

mod copying;
mod own;
mod trusted;
mod walk;

pub use copying::{Copying, Insertion};
pub use own::{MissingFolder, OwnFolder};
pub use rustix::fs::OFlags;
pub use trusted::{Privacy, open_trusted, read_trusted};
use walk::Mounts;

/// Entries of a folder that [`UntrustedFolder::clear`] looks at: its owner may add more all the
/// time.
const CLEARED_MAX: usize = 64;
/// Bits of a mode: write, and pass through.
const WRITE: u32 = 0o2;
const ENTER: u32 = 0o1;

/// As whom a process opens and makes files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Whose file is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A file of this user that has no other name: a second one could belong to a file that the
    /// user may not read.
    Only(u32),
    /// Any file: only whether it can be read safely matters.
    Anyone,
}

/// What a file has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub owner: Owner,
    /// How large at most.
    pub size_max: Bytes,
}

/// Why a file or folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedError {
    /// Nothing has the name.
    #[error("{}: no such folder", path.display())]
    Missing { path: PathBuf },
    /// Something else has the name.
    #[error("{}: expected a {expected}, got {got}", path.display())]
    Kind { path: PathBuf, expected: &'static str, got: &'static str },
    /// The file belongs to another user.
    #[error("{}: expected a file of user {expected}, got one of user {got}", path.display())]
    Owner {
        path: PathBuf,
        /// The user of the process.
        expected: u32,
        got: u32,
    },
    /// The file is also reachable elsewhere.
    #[error("{}: expected a file with one name, got one with {got} names (hard links)", path.display())]
    Names {
        path: PathBuf,
        /// How many names it has.
        got: u128,
    },
    /// The file is too large.
    #[error("{}: expected at most {size_max}, got {got}", path.display())]
    Size { path: PathBuf, size_max: Bytes, got: Bytes },
    /// Another file system begins there, which its owner may let hang.
    #[error("{}: expected a file on the disk of its folder, got a mount point", path.display())]
    Mounted { path: PathBuf },
    /// Another process may write it alone, and opening would wait for that process.
    #[error("{}: expected a file that nobody holds, got one with a lease of another process", path.display())]
    Leased { path: PathBuf },
    /// Another process still writes it.
    #[error("{}: the file changed while it was copied", path.display())]
    Changed { path: PathBuf },
    /// Its user may not pass through a folder.
    #[error("{}: user {uid} may not enter it", path.display())]
    Closed { path: PathBuf, uid: u32 },
    /// Its user may not make anything in a folder.
    #[error("{}: user {uid} may not write there", path.display())]
    Unwritable { path: PathBuf, uid: u32 },
    /// A folder that should be ours, or only root's, belongs to somebody who could exchange its
    /// entries.
    #[error(
        "{}: expected a folder of user {expected}{}, got one of user {got}",
        path.display(),
        // Root's folder is refused only where the agent's user has to write it.
        if matches!((expected, got), (0, _) | (_, 0)) { "" } else { " or of root" }
    )]
    Foreign { path: PathBuf, expected: u32, got: u32 },
    /// Other users may do more with a file than they should.
    #[error("{}: expected mode {most:04o} at most, got {mode:04o}", path.display())]
    Open {
        path: PathBuf,
        /// The most permissions it may have.
        most: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Other users may exchange entries of a folder.
    #[error("{}: expected a folder that only its owner may write, got mode {mode:04o}", path.display())]
    Shared {
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A folder was exchanged as soon as it was made.
    #[error("{}: no longer the folder that was made there", path.display())]
    Replaced { path: PathBuf },
    /// The operating system refuses.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
}

impl UntrustedError {
    /// An [`UntrustedError::Io`] for `map_err`.
    fn io<E: Into<io::Error>>(path: &Path, doing: &'static str) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source: source.into() }
    }

    /// Whether nothing has the name.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

impl From<UntrustedError> for io::Error {
    fn from(error: UntrustedError) -> Self {
        let kind = match &error {
            UntrustedError::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// A folder, held by its descriptor: renaming it or putting another in its place changes nothing.
#[derive(Debug)]
pub struct UntrustedFolder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// A regular file that was found as expected, held by its descriptor.
#[derive(Debug)]
pub struct UntrustedFile {
    file: fs::File,
    path: PathBuf,
    size: u64,
    modified: (i64, u64),
}

impl UntrustedFolder {
    /// Opens the absolute `path` below `root`, component by component, on behalf of a process with
    /// the credentials `who`. `root` is trusted: `/`, or `/proc/PID/root` for another view.
    ///
    /// Symbolic links are followed only where the process's user could not have made them: links of
    /// root in folders that only others may write.
    ///
    /// # Errors
    /// A component is missing, no folder, a link of the user, or closed to the user.
    pub fn open(root: &Path, path: &Path, who: &Credentials) -> Result<Self, UntrustedError> {
        let descriptor = walk::open(root, path, who)?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Makes a folder that only `who` may use, where `who` could make one as well.
    ///
    /// # Errors
    /// `who` may not write here; the name is taken; the new folder was replaced at once.
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
            // Removes only an empty folder, and nothing else can be removed by this call.
            let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR);
        }
        made
    }

    /// The regular file `name`, or `None` where nothing has the name. Neither the search nor the
    /// opening waits for anybody: a pipe or a device is recognised before it is opened.
    ///
    /// # Errors
    /// Something else has the name, or a file that is not as `expected`.
    pub fn file(
        &self,
        name: &str,
        expected: &Expected,
    ) -> Result<Option<UntrustedFile>, UntrustedError> {
        let path = self.path.join(name);
        // A descriptor for looking only: opening has no effect on what it refers to.
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let looked = match walk::open_name(&self.descriptor, name, flags, Mounts::Refuse) {
            Ok(looked) => looked,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::XDEV) => return Err(UntrustedError::Mounted { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let before = rustix::fs::fstat(&looked).map_err(UntrustedError::io(&path, "look at"))?;
        check(&path, &before, expected)?;
        // The same file again, by its descriptor and not by its name, now for reading. A file that
        // somebody holds a lease of must not make us wait either.
        let file = match walk::reopen(&looked) {
            Ok(file) => file,
            Err(Errno::AGAIN) => return Err(UntrustedError::Leased { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let found = rustix::fs::fstat(&file).map_err(UntrustedError::io(&path, "look at"))?;
        check(&path, &found, expected)?;
        if identity(&found) != identity(&before) {
            return Err(UntrustedError::Changed { path });
        }
        let (size, modified) = (length(&found), modified(&found));
        Ok(Some(UntrustedFile { file: file.into(), path, size, modified }))
    }

    /// The size of the regular file `name`, which is not opened; `None` where nothing has the name.
    ///
    /// # Errors
    /// Something else has the name, or a file that is not as `expected`.
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
        let there = rustix::fs::fstat(&other.descriptor);
        here.is_ok_and(|here| there.is_ok_and(|there| identity(&here) == identity(&there)))
    }

    /// Removes the folder `other`, made here under `name`, with the files that `uid` left in it.
    /// Whether it is gone: what is not the user's, folders, and a folder in its place all stay.
    pub fn remove(&self, name: &str, other: &Self, uid: u32) -> bool {
        other.clear(uid);
        // An owner who exchanges the folder now loses, at worst, another empty one.
        self.holds(name, other)
            && rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR).is_ok()
    }

    /// Removes entries that are not folders and belong to `uid`, of those there are at first.
    fn clear(&self, uid: u32) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.descriptor) else { return };
        for entry in entries.flatten().take(CLEARED_MAX) {
            let name = entry.file_name();
            let found = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
            let is_users =
                found.is_ok_and(|found| found.st_uid == uid && kind(&found) != FileType::Directory);
            if is_users {
                // A name goes, never what a link points to; its owner could remove it as well.
                let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
            }
        }
    }

    /// The folder `name` in this one.
    ///
    /// # Errors
    /// There is none, or something else has the name.
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

    /// Gives the folder, which was made a moment ago, to `who`.
    ///
    /// Making and opening are two steps: a folder that is not empty, or not ours, is another one.
    fn give(&self, who: &Credentials) -> Result<(), UntrustedError> {
        let look = || rustix::fs::fstat(&self.descriptor);
        let found = look().map_err(UntrustedError::io(&self.path, "look at"))?;
        if found.st_uid != process::own_uid() || !self.is_empty() {
            return Err(UntrustedError::Replaced { path: self.path.clone() });
        }
        if found.st_uid == who.uid {
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
    /// Its size when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its first bytes, `count` of them at most.
    ///
    /// # Errors
    /// It cannot be read.
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

    /// Its bytes in order, no more than it had when it was opened.
    pub fn into_reader(self) -> impl Read {
        self.file.take(self.size)
    }

    /// Whether it is as it was when it was opened.
    fn is_unchanged(&self) -> bool {
        let now = rustix::fs::fstat(self.file.as_fd());
        now.is_ok_and(|now| length(&now) == self.size && modified(&now) == self.modified)
    }
}

impl Credentials {
    /// Whether someone with these credentials has `bits` on a file, by its mode.
    fn may(&self, found: &Stat, bits: u32) -> bool {
        let shift = if found.st_uid == self.uid {
            6
        } else if found.st_gid == self.gid || self.groups.contains(&found.st_gid) {
            3
        } else {
            0
        };
        self.uid == 0 || (found.st_mode >> shift) & bits == bits
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
        // Wider than the count of any machine: its type is another on each.
        let names = u128::from(found.st_nlink);
        // A file that was removed since has none, and is read all the same.
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

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn kind_name(found: &Stat) -> &'static str {
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
