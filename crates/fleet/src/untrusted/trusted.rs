//! Reads configuration and secrets of a privileged program. Only the program's own user and root
//! may have written these files.
//!
//! The opened file is checked through its descriptor, after following links. The folders above the
//! file are not checked here, although their owners may replace the file.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use schema::Bytes;

use super::error::UntrustedError;
use super::file_kind::{kind, kind_name};
use super::own::effective_uid;

/// Maximum size of a file that is read.
const SIZE_MAX: Bytes = Bytes(1 << 20);

/// The permissions that other users may have on a trusted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Other users may read the file, but not write it.
    Readable,
    /// Only the owner may access the file.
    Secret,
}

impl Privacy {
    /// Returns the permission bits that must not be set.
    fn forbidden(self) -> u32 {
        match self {
            Self::Readable => 0o022,
            Self::Secret => 0o077,
        }
    }
}

/// Opens the regular file `path`, which may be a link, without blocking.
///
/// # Errors
/// Fails if the file does not exist, is not a regular file, belongs to a user other than root and
/// our own, or grants other users more permissions than `privacy` allows.
pub fn open_trusted(path: &Path, privacy: Privacy) -> Result<File, UntrustedError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file: OwnedFd =
        rustix::fs::open(path, flags, Mode::empty()).map_err(UntrustedError::io(path, "open"))?;
    let stat = rustix::fs::fstat(&file).map_err(UntrustedError::io(path, "look at"))?;
    let (path, expected) = (path.to_owned(), effective_uid());
    if kind(&stat) != FileType::RegularFile {
        let got = kind_name(&stat);
        return Err(UntrustedError::Kind { path, expected: "file", got });
    }
    if stat.st_uid != 0 && stat.st_uid != expected {
        return Err(UntrustedError::Owner { path, expected, got: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & privacy.forbidden() != 0 {
        return Err(UntrustedError::Open {
            path,
            most: 0o777 & !privacy.forbidden() & 0o644,
            mode,
        });
    }
    Ok(file.into())
}

/// Reads a file with the checks of [`open_trusted`].
///
/// # Errors
/// The errors of [`open_trusted`]; also fails if the file is larger than 1 MiB or cannot be read.
pub fn read_trusted(path: &Path, privacy: Privacy) -> Result<Vec<u8>, UntrustedError> {
    let file = open_trusted(path, privacy)?;
    let mut bytes = Vec::new();
    file.take(SIZE_MAX.0 + 1).read_to_end(&mut bytes).map_err(UntrustedError::io(path, "read"))?;
    if bytes.len() as u64 > SIZE_MAX.0 {
        let (path, got) = (path.to_owned(), Bytes(bytes.len() as u64));
        return Err(UntrustedError::Size { path, size_max: SIZE_MAX, got });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{Privacy, read_trusted};

    #[test]
    fn files_writable_by_others_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "secret").unwrap();
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let read = |privacy| read_trusted(&path, privacy).map_err(|e| e.to_string());
        for (mode, is_readable, is_secret) in
            [(0o600, true, true), (0o644, true, false), (0o640, true, false), (0o666, false, false)]
        {
            set(mode);
            assert_eq!(read(Privacy::Readable).is_ok(), is_readable, "{mode:o}");
            assert_eq!(read(Privacy::Secret).is_ok(), is_secret, "{mode:o}");
        }
        set(0o600);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read_trusted(&link, Privacy::Secret).unwrap(), b"secret");
        fs::write(&path, vec![b'a'; (1 << 20) + 1]).unwrap();
        assert!(read(Privacy::Secret).unwrap_err().contains("at most 1.0 MiB"));
        if testkit::has_root("a file of another user") {
            std::os::unix::fs::chown(&path, Some(1001), None).unwrap();
            assert!(read(Privacy::Secret).unwrap_err().contains("user 1001"));
        }
    }

    #[test]
    fn pipe_in_place_of_a_file_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let refused = read_trusted(&path, Privacy::Secret).unwrap_err().to_string();
        assert!(refused.contains("expected a file, got"), "{refused}");
    }
}
