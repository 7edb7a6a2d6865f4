//! Folders of our own, in which another user can neither put nor exchange anything: that is checked
//! for the folder and for every folder above it, and then the folder is held by its descriptor.
//!
//! Everything in it is opened relative to that descriptor, without following links. Knows nothing
//! of what is stored.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::walk::{self, Mounts};
use super::{UntrustedError, kind, kind_name};

/// Links in one path, as the kernel counts them.
const LINKS_MAX: u32 = 40;
/// Folders within folders that [`OwnFolder::remove_tree`] enters.
const DEPTH_MAX: u32 = 64;
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A folder that only we (and root) may change, held by its descriptor.
#[derive(Debug)]
pub struct OwnFolder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// What to do with a folder that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFolder {
    /// Make it with these permissions, and the folders above it with 0755.
    Make(u32),
    /// Report it as [`UntrustedError::Missing`].
    Refuse,
}

impl OwnFolder {
    /// Opens the folder `path`.
    ///
    /// # Errors
    /// The folder is another user's or others may write it; a folder above it belongs to another
    /// user, or others may write it and it has no sticky bit; the operating system refuses.
    pub fn open(path: &Path, missing: MissingFolder) -> Result<Self, UntrustedError> {
        let folder = Self::open_shared(path, missing)?;
        let found = folder.stat()?;
        let expected = own_uid();
        if found.st_uid != expected {
            let (path, got) = (folder.path, found.st_uid);
            return Err(UntrustedError::Foreign { path, expected, got });
        }
        if is_open_to_others(&found) {
            return Err(UntrustedError::Shared { path: folder.path, mode: found.st_mode & 0o7777 });
        }
        Ok(folder)
    }

    /// Opens the folder `path`, in which others may add files of their own if it has the sticky
    /// bit: what is ours in it still cannot be removed or exchanged by them.
    ///
    /// # Errors
    /// As [`OwnFolder::open`], except that root may own the folder.
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
            here.check_safe()?;
            if name == ".." {
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

    /// Holds a folder that the user chose for results, whoever may write it. Files in it are still
    /// made without following links.
    ///
    /// # Errors
    /// It is no folder, or the operating system refuses.
    pub fn hold(path: &Path) -> Result<Self, UntrustedError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(UntrustedError::io(path, "open"))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Refuses a folder in which everybody may exchange files of others.
    ///
    /// # Errors
    /// Everybody may write it, and it has no sticky bit.
    pub fn refuse_exchange(&self) -> Result<(), UntrustedError> {
        let mode = self.stat()?.st_mode & 0o7777;
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(UntrustedError::Shared { path: self.path.clone(), mode });
        }
        Ok(())
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder `name` in this one, readable and writable by its owner only.
    ///
    /// # Errors
    /// The name is taken, or the operating system refuses.
    pub fn make_folder(&self, name: &str) -> Result<Self, UntrustedError> {
        let path = self.path.join(name);
        rustix::fs::mkdirat(&self.descriptor, name, Mode::RWXU)
            .map_err(UntrustedError::io(&path, "make the folder"))?;
        self.folder(name)
    }

    /// The folder `name` in this one.
    ///
    /// # Errors
    /// There is none, or something else has the name.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> Result<Self, UntrustedError> {
        let path = self.path.join(name.as_ref());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let descriptor = walk::open_name(&self.descriptor, name, flags, Mounts::Refuse)
            .map_err(UntrustedError::io(&path, "open the folder"))?;
        Ok(Self { descriptor, path })
    }

    /// Makes the file `name`, which must not be there yet.
    ///
    /// # Errors
    /// The name is taken, or the operating system refuses.
    pub fn create(&self, name: impl AsRef<OsStr>) -> Result<File, UntrustedError> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens the regular file `name` with `flags`; a new one is for us alone.
    ///
    /// # Errors
    /// It is a link or no regular file, or the operating system refuses.
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
        // A pipe or device in its place must not make us wait.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(UntrustedError::io(&path, "open"))?;
        let found = rustix::fs::fstat(&opened).map_err(UntrustedError::io(&path, "look at"))?;
        if kind(&found) != FileType::RegularFile {
            return Err(UntrustedError::Kind { path, expected: "file", got: kind_name(&found) });
        }
        Ok(File::from(opened))
    }

    /// Opens our own regular file `name` to add to its end, and makes it where it is not there.
    ///
    /// # Errors
    /// As [`OwnFolder::open_file`]; the file is another user's or has a second name.
    pub fn append(&self, name: impl AsRef<OsStr>) -> Result<File, UntrustedError> {
        let path = self.path.join(name.as_ref());
        let file = self.open_file(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        let found = rustix::fs::fstat(&file).map_err(UntrustedError::io(&path, "look at"))?;
        let (expected, got) = (own_uid(), found.st_uid);
        if got != expected {
            return Err(UntrustedError::Owner { path, expected, got });
        }
        let names = u128::from(found.st_nlink);
        if names > 1 {
            return Err(UntrustedError::Names { path, got: names });
        }
        Ok(file)
    }

    /// Reads at most the first `size_max` bytes of the file `name`. Returns `None` if there is no
    /// such file.
    ///
    /// # Errors
    /// As [`OwnFolder::open_file`].
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

    /// Replaces the file `name` atomically: writes a temporary file beside it, flushes it to the
    /// disk, and renames it.
    ///
    /// # Errors
    /// The operating system refuses; the old file is unchanged.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), UntrustedError> {
        let beside = format!("{name}.new");
        let path = self.path.join(name);
        let write = UntrustedError::io::<io::Error>(&path, "write");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.open_file(&beside, flags)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(write)?;
        self.rename(&beside, self, name)
    }

    /// Gives the file `from` the name `to` in another folder of the same disk.
    ///
    /// # Errors
    /// The operating system refuses.
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
        // The names are as durable as the disk allows; some have no such call for folders.
        let _ = self.readable().map(|opened| rustix::fs::fsync(&opened));
    }

    /// The names of its entries.
    ///
    /// # Errors
    /// The operating system refuses.
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

    /// The folder, opened so that its entries can be listed.
    fn readable(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty())
    }

    /// The size of the entry `name`; 0 where there is none.
    pub fn size(&self, name: impl AsRef<OsStr>) -> u64 {
        self.entry(name.as_ref()).map_or(0, |found| super::length(&found))
    }

    /// The user of the entry `name`, which is not followed where it is a link.
    pub fn owner(&self, name: impl AsRef<OsStr>) -> Option<u32> {
        self.entry(name.as_ref()).map(|found| found.st_uid)
    }

    /// Whether the entry `name` is a folder.
    pub fn has_folder(&self, name: impl AsRef<OsStr>) -> bool {
        self.entry(name.as_ref()).is_some_and(|found| kind(&found) == FileType::Directory)
    }

    /// Removes the entry `name` unless it is a folder. Returns whether there was one.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> bool {
        rustix::fs::unlinkat(&self.descriptor, name.as_ref(), AtFlags::empty()).is_ok()
    }

    /// Removes the entry `name` with everything below it. A link is removed, never what it names.
    ///
    /// # Errors
    /// The operating system refuses, something is mounted below it, or it is too deep.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<(), UntrustedError> {
        self.remove_below(name.as_ref(), DEPTH_MAX)
    }

    fn remove_below(&self, name: &OsStr, depth: u32) -> Result<(), UntrustedError> {
        let remove = |flags| rustix::fs::unlinkat(&self.descriptor, name, flags);
        let path = self.path.join(name);
        match remove(AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
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

    /// Whether only this process's user and root can replace files that this user owns in the
    /// folder.
    fn check_safe(&self) -> Result<(), UntrustedError> {
        let found = self.stat()?;
        let expected = own_uid();
        if found.st_uid != 0 && found.st_uid != expected {
            let (path, got) = (self.path.clone(), found.st_uid);
            return Err(UntrustedError::Foreign { path, expected, got });
        }
        if is_open_to_others(&found) && found.st_mode & STICKY == 0 {
            let (path, mode) = (self.path.clone(), found.st_mode & 0o7777);
            return Err(UntrustedError::Shared { path, mode });
        }
        Ok(())
    }

    /// Opens the next part of a path. Follows a link only if it belongs to this user or root.
    fn step(
        &self,
        name: &OsStr,
        missing: MissingFolder,
        is_last: bool,
    ) -> Result<PathStep, UntrustedError> {
        let path = self.path.join(name);
        let looking = OFlags::PATH | OFlags::NOFOLLOW;
        let look = || walk::open_name(&self.descriptor, name, looking, Mounts::Cross);
        let mut found = look();
        if let (Err(Errno::NOENT), MissingFolder::Make(mode)) = (&found, missing) {
            let mode = Mode::from_raw_mode(if is_last { mode } else { 0o755 });
            match rustix::fs::mkdirat(&self.descriptor, name, mode) {
                Ok(()) | Err(Errno::EXIST) => found = look(),
                Err(errno) => return Err(UntrustedError::io(&path, "make the folder")(errno)),
            }
        }
        let descriptor = match found {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Err(UntrustedError::Missing { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let next = Self { descriptor, path };
        let found = next.stat()?;
        let is_trusted = found.st_uid == 0 || found.st_uid == own_uid();
        match kind(&found) {
            FileType::Directory => Ok(PathStep::Folder(next)),
            FileType::Symlink if is_trusted => {
                let target = rustix::fs::readlinkat(&next.descriptor, "", Vec::new())
                    .map_err(UntrustedError::io(&next.path, "read the link"))?;
                Ok(PathStep::Link(PathBuf::from(OsStr::from_bytes(target.to_bytes()))))
            }
            _ => {
                let (path, got) = (next.path, kind_name(&found));
                Err(UntrustedError::Kind { path, expected: "folder", got })
            }
        }
    }
}

/// One component of a path.
enum PathStep {
    Folder(OwnFolder),
    Link(PathBuf),
}

/// Whether users beside the owner may add and remove entries. A group of root, or one that has the
/// number of the folder's user (a private group), counts as the owner.
fn is_open_to_others(found: &Stat) -> bool {
    let is_private = found.st_gid == 0 || found.st_gid == found.st_uid;
    found.st_mode & OTHERS_WRITE != 0 || (found.st_mode & GROUP_WRITE != 0 && !is_private)
}

pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
