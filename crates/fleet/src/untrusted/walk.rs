//! Walks from a root to a folder, one component of the path at a time. Each component is opened
//! relative to the descriptor of the previous one, so replacing a folder above it has no effect.

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

/// Maximum number of links in one path, which is also the kernel's limit.
const LINKS_MAX: u32 = 40;

/// Whether an entry may be the root of another file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// The entry may be a mount point. Used for the components on the way to a folder.
    Cross,
    /// A mount point is refused. Used for entries of a folder that belongs to a process.
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
                // An absolute target is relative to the process's root, not to ours.
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

/// The state of a walk: the open folders from the root to the current position.
struct Walk {
    open: Vec<OwnedFd>,
    names: Vec<OsString>,
    links: u32,
}

impl Walk {
    /// Enters the subfolder `name`. If `name` is a link that may be followed, returns its target
    /// instead.
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
                // An empty name reads the link that the descriptor refers to, so the link cannot be
                // exchanged in between.
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

    /// Ends the walk and returns the last folder, in which entries can be listed and created.
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

/// Whether the user could neither have created nor replaced a link. The function returns true for a
/// link of root in a folder of root that the user may not write.
fn is_beyond(link: &Stat, above: &Stat, who: &Credentials) -> bool {
    link.st_uid == 0 && above.st_uid == 0 && !who.may(above, WRITE)
}

fn looked_at(descriptor: &OwnedFd, path: &Path) -> Result<Stat, UntrustedError> {
    rustix::fs::fstat(descriptor).map_err(UntrustedError::io(path, "look at"))
}

/// Opens one entry of a folder without following links. The name must be a single component.
pub fn open_name(
    folder: &OwnedFd,
    name: impl AsRef<OsStr>,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    /// Whether `openat2` is not supported, because the kernel is older than 5.6 or a container's
    /// filter rejects the call.
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

/// Opens an entry with calls that every kernel supports. These calls are safe here, because a
/// single name has no components above it that could be replaced.
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
