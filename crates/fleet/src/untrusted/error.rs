//! The error of opening an untrusted file or folder, with the expected and the actual property.

use std::io;
use std::path::{Path, PathBuf};

use schema::Bytes;

/// The reason why a file or folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedError {
    /// The file or folder does not exist.
    #[error("{}: no such folder", path.display())]
    Missing { path: PathBuf },
    /// The name belongs to another kind of entry.
    #[error("{}: expected a {expected}, got {got}", path.display())]
    Kind { path: PathBuf, expected: &'static str, got: &'static str },
    /// The file belongs to another user.
    #[error("{}: expected a file of user {expected}, got one of user {got}", path.display())]
    Owner {
        path: PathBuf,
        /// User of the process, to whom the file must belong.
        expected: u32,
        got: u32,
    },
    /// The file has several names (hard links).
    #[error("{}: expected a file with one name, got one with {got} names (hard links)", path.display())]
    Names {
        path: PathBuf,
        /// Number of names of the file.
        got: u128,
    },
    #[error("{}: expected at most {size_max}, got {got}", path.display())]
    Size { path: PathBuf, size_max: Bytes, got: Bytes },
    /// Another file system is mounted at the path, and its owner could make every access hang.
    #[error("{}: expected a file on the disk of its folder, got a mount point", path.display())]
    Mounted { path: PathBuf },
    /// Another process holds a lease on the file, so opening it would wait for that process.
    #[error("{}: expected a file without a lease, got one with a lease of another process", path.display())]
    Leased { path: PathBuf },
    /// The file changed between two checks, so another process is still writing it.
    #[error("{}: the file changed while it was copied", path.display())]
    Changed { path: PathBuf },
    /// The permissions of the folder do not allow the user to search it.
    #[error("{}: user {uid} may not enter it", path.display())]
    Closed { path: PathBuf, uid: u32 },
    /// The user may not create entries in the folder.
    #[error("{}: user {uid} may not write there", path.display())]
    Unwritable { path: PathBuf, uid: u32 },
    /// A folder that must be ours or root's belongs to a user who could replace its entries.
    #[error(
        "{}: expected a folder of user {expected}{}, got one of user {got}",
        path.display(),
        // A folder of root is an error only if the agent's user has to write to it.
        if matches!((expected, got), (0, _) | (_, 0)) { "" } else { " or of root" }
    )]
    Foreign { path: PathBuf, expected: u32, got: u32 },
    /// Other users have more permissions on a file than allowed.
    #[error("{}: expected mode {most:04o} at most, got {mode:04o}", path.display())]
    Open {
        path: PathBuf,
        /// The maximum permissions that are allowed.
        most: u32,
        /// The permissions that other users and the owner have, as a mode.
        mode: u32,
    },
    /// Other users may replace entries of a folder.
    #[error("{}: expected a folder that only its owner may write, got mode {mode:04o}", path.display())]
    Shared {
        path: PathBuf,
        /// The permissions that other users and the owner have, as a mode.
        mode: u32,
    },
    /// A folder was replaced right after its creation.
    #[error("{}: the folder was replaced after its creation", path.display())]
    Replaced { path: PathBuf },
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
}

impl UntrustedError {
    /// Wraps a system error as [`UntrustedError::Io`], for `map_err`.
    pub(super) fn io<E: Into<io::Error>>(
        path: &Path,
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source: source.into() }
    }

    /// Whether the name does not exist.
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
