//! Walks from a root to a folder one component at a time. Each is opened relative to the descriptor
//! of the previous one, so replacing a folder above has no effect.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::UntrustedError;
use super::file_kind::{kind, kind_name};
use crate::credentials::{Credentials, ENTER, WRITE};

/// Limit of the links in one path, the same as the kernel's.
const LINKS_MAX: u32 = 40;

/// Whether an entry may be the root of another file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Allowed on the way to a folder.
    Cross,
    /// Not allowed in a folder that belongs to a process.
    Refuse,
}

/// Opens the folder `path` below `root` on behalf of a user with the credentials `who`.
pub fn open(root: &Path, path: &Path, who: &Credentials) -> Result<OwnedFd, UntrustedError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let first = rustix::fs::openat(CWD, root, flags, Mode::empty())
        .map_err(UntrustedError::io(root, "open the root folder"))?;
    let mut walk = Walk { open: vec![first], names: Vec::new(), links: 0 };
    let mut left: VecDeque<OsString> = names(path).collect();
    while let Some(name) = left.pop_front() {
        if name == ".." {
            walk.leave();
        } else if let Some(target) = walk.enter(&name, who)? {
            if target.is_absolute() {
                walk.restart();
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(name);
            }
        }
    }
    walk.end(who)
}

/// Returns the components of a path, without a leading `/` and without `.`.
pub fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The open folders from the root to the current position.
struct Walk {
    open: Vec<OwnedFd>,
    names: Vec<OsString>,
    links: u32,
}

impl Walk {
    /// Enters a subfolder, or follows a link in its place.
    fn enter(
        &mut self,
        name: &OsStr,
        who: &Credentials,
    ) -> Result<Option<PathBuf>, UntrustedError> {
        let Some(here) = self.open.last() else { return Ok(None) };
        let path = self.path().join(name);
        let above = looked_at(here, &path)?;
        if !who.may(&above, ENTER) {
            return Err(UntrustedError::Closed { path: self.path(), uid: who.uid });
        }
        let next = open_name(here, name, OFlags::PATH | OFlags::NOFOLLOW, Mounts::Cross);
        let next = match next {
            Ok(next) => next,
            Err(Errno::NOENT) => return Err(UntrustedError::Missing { path }),
            Err(errno) => return Err(UntrustedError::io(&path, "open")(errno)),
        };
        let stat = looked_at(&next, &path)?;
        match kind(&stat) {
            FileType::Directory => {
                self.open.push(next);
                self.names.push(name.to_owned());
                Ok(None)
            }
            FileType::Symlink if is_beyond(&stat, &above, who) && self.links < LINKS_MAX => {
                self.links += 1;
                let target = rustix::fs::readlinkat(&next, "", Vec::new());
                let target = target.map_err(UntrustedError::io(&path, "read the link"))?;
                Ok(Some(PathBuf::from(OsStr::from_bytes(target.to_bytes()))))
            }
            _ => Err(UntrustedError::Kind { path, expected: "folder", got: kind_name(&stat) }),
        }
    }

    /// Goes up one folder, but never above the root.
    fn leave(&mut self) {
        if self.names.pop().is_some() {
            self.open.pop();
        }
    }

    fn restart(&mut self) {
        self.open.truncate(1);
        self.names.clear();
    }

    fn path(&self) -> PathBuf {
        Path::new("/").join(self.names.iter().collect::<PathBuf>())
    }

    /// Opens the folder for listing and creating entries.
    fn end(self, who: &Credentials) -> Result<OwnedFd, UntrustedError> {
        let path = self.path();
        let Some(last) = self.open.last() else { return Err(UntrustedError::Missing { path }) };
        if !who.may(&looked_at(last, &path)?, ENTER) {
            return Err(UntrustedError::Closed { path, uid: who.uid });
        }
        // A descriptor opened with `O_PATH` is enough, because entries are opened relative to it.
        self.open.into_iter().next_back().ok_or(UntrustedError::Missing { path })
    }
}

/// Whether a link is one that the user could neither create nor replace: a link of root in a folder
/// that the user may not write.
fn is_beyond(link: &Stat, above: &Stat, who: &Credentials) -> bool {
    link.st_uid == 0 && above.st_uid == 0 && !who.may(above, WRITE)
}

fn looked_at(descriptor: &OwnedFd, path: &Path) -> Result<Stat, UntrustedError> {
    rustix::fs::fstat(descriptor).map_err(UntrustedError::io(path, "look at"))
}

/// Opens one entry of a folder. The name must be a single component, and links are not followed.
pub fn open_name(
    folder: &OwnedFd,
    name: impl AsRef<OsStr>,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    /// Set if the kernel (before 5.6) or a container's filter does not support the call.
    static IS_OLD: AtomicBool = AtomicBool::new(false);
    let name = name.as_ref();
    if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
        return Err(Errno::INVAL);
    }
    let flags = flags | OFlags::CLOEXEC;
    let mut resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Refuse {
        resolve |= ResolveFlags::NO_XDEV;
    }
    if !IS_OLD.load(Ordering::Relaxed) {
        match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => IS_OLD.store(true, Ordering::Relaxed),
            opened => return opened,
        }
    }
    open_name_by_steps(folder, name, flags, mounts)
}

/// Opens an entry with calls that every kernel supports. A single name has no components that could
/// be replaced.
pub fn open_name_by_steps(
    folder: &OwnedFd,
    name: &OsStr,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let opened = rustix::fs::openat(folder, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let is_elsewhere =
        || Ok(rustix::fs::fstat(&opened)?.st_dev != rustix::fs::fstat(folder)?.st_dev);
    if mounts == Mounts::Refuse && is_elsewhere()? {
        return Err(Errno::XDEV);
    }
    Ok(opened)
}

/// Opens the file behind an `O_PATH` descriptor for reading.
pub fn reopen(looked: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}
