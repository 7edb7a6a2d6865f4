//! Folders in which no other user can add or replace entries. The folder and all folders above it
//! are checked once, and then the folder is used through its descriptor.
//!
//! Entries are opened relative to this descriptor, without following links.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::UntrustedError;
use super::file_kind::{kind, kind_name};
use super::walk::{self, Mounts};

/// Maximum number of links in one path, which is also the kernel's limit.
const LINKS_MAX: u32 = 40;
/// Maximum depth of folders that [`OwnFolder::remove_tree`] removes.
const DEPTH_MAX: u32 = 64;
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// An open folder whose entries only this process's user and root may change.
#[derive(Debug)]
pub struct OwnFolder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// What to do if a folder is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFolder {
    /// Create the folder with these permissions, and missing folders above it with 0755.
    Make(u32),
    /// Return [`UntrustedError::Missing`].
    Refuse,
}

impl OwnFolder {
    /// Opens the folder `path`.
    ///
    /// # Errors
    /// Fails if the folder belongs to another user, or if others may write to it. Also fails if a
    /// folder above it belongs to a user other than root and our own, or is writable by others
    /// without a sticky bit, or if the operating system refuses.
    pub fn open(path: &Path, missing: MissingFolder) -> Result<Self, UntrustedError> {
        let folder = Self::open_shared(path, missing)?;
        let metadata = folder.stat()?;
        let expected = effective_uid();
        if metadata.st_uid != expected {
            let (path, got) = (folder.path, metadata.st_uid);
            return Err(UntrustedError::Foreign { path, expected, got });
        }
        if is_open_to_others(&metadata) {
            return Err(UntrustedError::Shared {
                path: folder.path,
                mode: metadata.st_mode & 0o7777,
            });
        }
        Ok(folder)
    }

    /// Opens the folder `path`, which other users may share. If it has the sticky bit, they may add
    /// files to it, but they cannot remove or replace ours.
    ///
    /// # Errors
    /// The errors of [`OwnFolder::open`], except that root may own the folder and others may write
    /// to it if it has the sticky bit.
    pub fn open_shared(path: &Path, missing: MissingFolder) -> Result<Self, UntrustedError> {
        let path = std::path::absolute(path).map_err(UntrustedError::io(path, "find"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, "/", flags, Mode::empty())
            .map_err(UntrustedError::io(Path::new("/"), "open"))?;
        let mut open = vec![Self { descriptor: root, path: PathBuf::from("/") }];
        let mut left: VecDeque<OsString> = walk::names(&path).collect();
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            let Some(here) = open.last() else { break };
            // The folder is checked before its entry is opened, because whoever may change it could
            // exchange the entry.
            here.check_safe()?;
            if name == ".." {
                // The parent of the root is the root itself.
                open.truncate((open.len() - 1).max(1));
                continue;
            }
            let is_last = left.is_empty();
            match here.step(&name, missing, is_last)? {
                PathStep::Folder(next) => open.push(next),
                PathStep::Link(target) if links < LINKS_MAX => {
                    links += 1;
                    if target.is_absolute() {
                        open.truncate(1);
                    }
                    for name in walk::names(&target).collect::<Vec<_>>().into_iter().rev() {
                        left.push_front(name);
                    }
                }
                PathStep::Link(_) => {
                    let (expected, got) = ("folder", "a chain of symbolic links");
                    return Err(UntrustedError::Kind { path, expected, got });
                }
            }
        }
        let last = open.pop().ok_or(UntrustedError::Missing { path })?;
        last.check_safe()?;
        Ok(last)
    }

    /// Opens a folder that the user chose for results, without checking who may write to it. Files
    /// in it are still created without following links.
    ///
    /// # Errors
    /// Fails if `path` is not a folder, or if the operating system refuses.
    pub fn hold(path: &Path) -> Result<Self, UntrustedError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(UntrustedError::io(path, "open"))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Rejects a folder in which every user may replace the files of other users.
    ///
    /// # Errors
    /// Fails if every user may write to the folder and it has no sticky bit.
    pub fn refuse_exchange(&self) -> Result<(), UntrustedError> {
        let mode = self.stat()?.st_mode & 0o7777;
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(UntrustedError::Shared { path: self.path.clone(), mode });
        }
        Ok(())
    }

    /// Returns the path at which the folder was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the subfolder `name`, which only its owner can read and write.
    ///
    /// # Errors
    /// Fails if the name exists, or if the operating system refuses.
    pub fn make_folder(&self, name: &str) -> Result<Self, UntrustedError> {
        let path = self.path.join(name);
        rustix::fs::mkdirat(&self.descriptor, name, Mode::RWXU)
            .map_err(UntrustedError::io(&path, "make the folder"))?;
        self.folder(name)
    }

    /// Opens the subfolder `name`.
    ///
    /// # Errors
    /// Fails if the subfolder does not exist, or if the name belongs to another kind of entry.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> Result<Self, UntrustedError> {
        let path = self.path.join(name.as_ref());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let descriptor = walk::open_name(&self.descriptor, name, flags, Mounts::Refuse)
            .map_err(UntrustedError::io(&path, "open the folder"))?;
        Ok(Self { descriptor, path })
    }

    /// Creates the file `name`, which must not exist yet.
    ///
    /// # Errors
    /// Fails if the name exists, or if the operating system refuses.
    pub fn create(&self, name: impl AsRef<OsStr>) -> Result<File, UntrustedError> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens the regular file `name` with `flags`. A file that this call creates can be accessed by
    /// our user only.
    ///
    /// # Errors
    /// Fails if the name belongs to a link or to another kind of entry, or if the operating system
    /// refuses.
    pub fn open_file(
        &self,
        name: impl AsRef<OsStr>,
        flags: OFlags,
    ) -> Result<File, UntrustedError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        if name.as_bytes().contains(&b'/') {
            return Err(UntrustedError::io(&path, "open")(Errno::INVAL));
        }
        // `NONBLOCK` keeps a pipe or device of this name from blocking the call.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(UntrustedError::io(&path, "open"))?;
        let stat = rustix::fs::fstat(&opened).map_err(UntrustedError::io(&path, "look at"))?;
        if kind(&stat) != FileType::RegularFile {
            return Err(UntrustedError::Kind { path, expected: "file", got: kind_name(&stat) });
        }
        Ok(File::from(opened))
    }

    /// Opens the regular file `name` of our user for appending, and creates it if it is missing.
    ///
    /// # Errors
    /// The errors of [`OwnFolder::open_file`]; also fails if the file belongs to another user or
    /// has a second name.
    pub fn append(&self, name: impl AsRef<OsStr>) -> Result<File, UntrustedError> {
        let path = self.path.join(name.as_ref());
        let file = self.open_file(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        let stat = rustix::fs::fstat(&file).map_err(UntrustedError::io(&path, "look at"))?;
        let (expected, got) = (effective_uid(), stat.st_uid);
        if got != expected {
            return Err(UntrustedError::Owner { path, expected, got });
        }
        let names = u128::from(stat.st_nlink);
        if names > 1 {
            return Err(UntrustedError::Names { path, got: names });
        }
        Ok(file)
    }

    /// Reads at most the first `size_max` bytes of the file `name`. Returns `None` if there is no
    /// such file.
    ///
    /// # Errors
    /// The errors of [`OwnFolder::open_file`].
    pub fn read(&self, name: &str, size_max: u64) -> Result<Option<Vec<u8>>, UntrustedError> {
        let file = match self.open_file(name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(size_max)
            .read_to_end(&mut bytes)
            .map_err(UntrustedError::io(&self.path.join(name), "read"))?;
        Ok(Some(bytes))
    }

    /// Replaces the file `name` atomically. The new content is written to a temporary file, flushed
    /// to the disk, and renamed.
    ///
    /// # Errors
    /// Fails if the operating system refuses. The old file is then unchanged.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), UntrustedError> {
        let beside = format!("{name}.new");
        let path = self.path.join(name);
        let write = UntrustedError::io::<io::Error>(&path, "write");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.open_file(&beside, flags)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(write)?;
        self.rename(&beside, self, name)
    }

    /// Moves the file `from` to the name `to` in another folder of the same disk.
    ///
    /// # Errors
    /// Fails if the operating system refuses.
    pub fn rename(
        &self,
        from: impl AsRef<OsStr>,
        folder: &Self,
        to: impl AsRef<OsStr>,
    ) -> Result<(), UntrustedError> {
        let target = folder.path.join(to.as_ref());
        rustix::fs::renameat(&self.descriptor, from.as_ref(), &folder.descriptor, to.as_ref())
            .map_err(UntrustedError::io(&target, "rename"))
    }

    /// Flushes the folder's list of entries to the disk, so that renames survive a crash.
    pub fn sync(&self) {
        // Some file systems do not support `fsync` of folders, so errors are ignored.
        let _ = self.readable().map(|opened| rustix::fs::fsync(&opened));
    }

    /// Lists the names of the entries.
    ///
    /// # Errors
    /// Fails if the operating system refuses.
    pub fn names(&self) -> Result<Vec<OsString>, UntrustedError> {
        let list = || UntrustedError::io::<Errno>(&self.path, "list");
        let entries = self.readable().and_then(rustix::fs::Dir::new).map_err(list())?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(list())?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Opens the folder again for listing its entries.
    fn readable(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty())
    }

    /// Returns the size of the entry `name`, or 0 if it does not exist.
    pub fn size(&self, name: impl AsRef<OsStr>) -> u64 {
        self.entry(name.as_ref()).map_or(0, |found| super::length(&found))
    }

    /// Returns the user of the entry `name`. If the entry is a link, the user of the link itself is
    /// returned.
    pub fn owner(&self, name: impl AsRef<OsStr>) -> Option<u32> {
        self.entry(name.as_ref()).map(|found| found.st_uid)
    }

    /// Whether the entry `name` is a folder.
    pub fn has_folder(&self, name: impl AsRef<OsStr>) -> bool {
        self.entry(name.as_ref()).is_some_and(|found| kind(&found) == FileType::Directory)
    }

    /// Removes the entry `name` unless it is a folder. Returns whether an entry was removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> bool {
        rustix::fs::unlinkat(&self.descriptor, name.as_ref(), AtFlags::empty()).is_ok()
    }

    /// Removes the entry `name` with everything below it. A link is removed without its target.
    ///
    /// # Errors
    /// Fails if the operating system refuses, if a file system is mounted below the entry, or if
    /// the entry is too deep.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<(), UntrustedError> {
        self.remove_below(name.as_ref(), DEPTH_MAX)
    }

    fn remove_below(&self, name: &OsStr, depth: u32) -> Result<(), UntrustedError> {
        let remove = |flags| rustix::fs::unlinkat(&self.descriptor, name, flags);
        let path = self.path.join(name);
        match remove(AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // `unlink` of a folder fails with EISDIR on Linux, and with EPERM according to POSIX.
            Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
            Err(errno) => return Err(UntrustedError::io(&path, "remove")(errno)),
        }
        let folder = self.folder(name)?;
        for name in folder.names()? {
            folder.remove_below(&name, depth - 1)?;
        }
        remove(AtFlags::REMOVEDIR).map_err(UntrustedError::io(&path, "remove"))
    }

    fn stat(&self) -> Result<Stat, UntrustedError> {
        rustix::fs::fstat(&self.descriptor).map_err(UntrustedError::io(&self.path, "look at"))
    }

    fn entry(&self, name: &OsStr) -> Option<Stat> {
        rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Checks that no user except root and this process's own can replace this user's files in the
    /// folder.
    fn check_safe(&self) -> Result<(), UntrustedError> {
        let metadata = self.stat()?;
        let expected = effective_uid();
        if metadata.st_uid != 0 && metadata.st_uid != expected {
            let (path, got) = (self.path.clone(), metadata.st_uid);
            return Err(UntrustedError::Foreign { path, expected, got });
        }
        if is_open_to_others(&metadata) && metadata.st_mode & STICKY == 0 {
            let (path, mode) = (self.path.clone(), metadata.st_mode & 0o7777);
            return Err(UntrustedError::Shared { path, mode });
        }
        Ok(())
    }

    /// Opens the entry `name` of this folder as the next component of a path. Follows a link only
    /// if it belongs to this user or root.
    fn step(
        &self,
        name: &OsStr,
        missing: MissingFolder,
        is_last: bool,
    ) -> Result<PathStep, UntrustedError> {
        let path = self.path.join(name);
        let looking = OFlags::PATH | OFlags::NOFOLLOW;
        let look = || walk::open_name(&self.descriptor, name, looking, Mounts::Cross);
        let mut opened = look();
        if let (Err(Errno::NOENT), MissingFolder::Make(mode)) = (&opened, missing) {
            let mode = Mode::from_raw_mode(if is_last { mode } else { 0o755 });
            match rustix::fs::mkdirat(&self.descriptor, name, mode) {
                // Another process may have created the folder first; its owner is checked like that
                // of any other folder.
                Ok(()) | Err(Errno::EXIST) => opened = look(),
                Err(errno) => return Err(UntrustedError::io(&path, "make the folder")(errno)),
            }
        }
        let descriptor = match opened {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Err(UntrustedError::Missing { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let next = Self { descriptor, path };
        let opened = next.stat()?;
        let is_trusted = opened.st_uid == 0 || opened.st_uid == effective_uid();
        match kind(&opened) {
            FileType::Directory => Ok(PathStep::Folder(next)),
            FileType::Symlink if is_trusted => {
                let target = rustix::fs::readlinkat(&next.descriptor, "", Vec::new())
                    .map_err(UntrustedError::io(&next.path, "read the link"))?;
                Ok(PathStep::Link(PathBuf::from(OsStr::from_bytes(target.to_bytes()))))
            }
            _ => {
                let (path, got) = (next.path, kind_name(&opened));
                Err(UntrustedError::Kind { path, expected: "folder", got })
            }
        }
    }
}

/// The result of opening one component of a path.
enum PathStep {
    Folder(OwnFolder),
    Link(PathBuf),
}

/// Whether users other than the owner may add and remove entries. The group of root and a group
/// with the same number as the folder's user (a private group) do not count as other users.
fn is_open_to_others(found: &Stat) -> bool {
    let is_private = found.st_gid == 0 || found.st_gid == found.st_uid;
    found.st_mode & OTHERS_WRITE != 0 || (found.st_mode & GROUP_WRITE != 0 && !is_private)
}

pub(super) fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
