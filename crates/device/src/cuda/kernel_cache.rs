//! Files of compiled kernels, in a folder that no other user can write to, because the code is
//! loaded into this process or run on its GPU. The last line of each file proves that the file is
//! complete. This module does not depend on the compilers.
//!
//! The last line is `rowmill-kernels 1 COMPILER BYTES CHECKSUM`: the format version, the
//! compiler, the bytes of the code, and the XXH3 checksum of file name, compiler and code. The
//! line follows the code because ELF loaders and NVIDIA's tools ignore everything after the last
//! section.
#![expect(unsafe_code, reason = "queries the user of this process")]

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::error::DriverError;

/// Start of the last line of a file, with the version of the format.
const MARK: &str = "rowmill-kernels 1";

/// A folder of compiled kernels that no other user can write to.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelCache<'a> {
    folder: &'a Path,
}

/// The compiled code of one complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedCode {
    pub code: Vec<u8>,
    /// Name and version of the compiler that made the code, as one word.
    pub compiler: String,
}

impl<'a> KernelCache<'a> {
    /// Checks that no other user could have put code into the folder. The folder need not exist.
    ///
    /// # Errors
    /// Fails with [`DriverError::Cache`] if the folder or the file cannot be used.
    pub fn new(folder: &'a Path) -> Result<Self, DriverError> {
        let resolved = match fs::canonicalize(folder) {
            Ok(resolved) => resolved,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { folder }),
            Err(error) => return Err(refused(folder, error.to_string())),
        };
        let about = |path: &Path| fs::metadata(path).map_err(|e| refused(path, e.to_string()));
        check_owner(&about(&resolved)?).map_err(|problem| refused(folder, problem))?;
        for parent in resolved.ancestors().skip(1) {
            // A user who may rename the folder can replace it. In a parent with the sticky bit,
            // such as /tmp, only the owner of the folder may rename it.
            let mode = about(parent)?.mode();
            if mode & 0o002 != 0 && mode & 0o1000 == 0 {
                let problem =
                    format!("lies in {}, where everybody can replace it", parent.display());
                return Err(refused(folder, problem));
            }
        }
        Ok(Self { folder })
    }

    /// Reads the code of a file. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Fails with [`DriverError::Cache`] if the file is damaged or belongs to another user.
    pub fn read(&self, name: &str) -> Result<Option<CachedCode>, DriverError> {
        let path = self.folder.join(name);
        let refused = |problem: String| refused(&path, problem);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
        };
        let about = file.metadata().map_err(|error| refused(error.to_string()))?;
        check_owner(&about).map_err(refused)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
        unseal(name, bytes).map(Some).map_err(refused)
    }

    /// Stores code in a file atomically and returns its path.
    ///
    /// # Errors
    /// Fails with [`DriverError::Cache`] if the folder or the file cannot be used.
    pub fn write(&self, name: &str, code: &[u8], compiler: &str) -> Result<PathBuf, DriverError> {
        self.create()?;
        let path = self.folder.join(name);
        let line = seal(name, code, compiler);
        let (mut file, part) = self.create_part(name)?;
        // The rename is atomic, so no other process can read a partly written file.
        let written = file.write_all(code).and_then(|()| file.write_all(line.as_bytes()));
        let written = written.and_then(|()| fs::rename(&part, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&part);
            refused(&path, error.to_string())
        })?;
        Ok(path)
    }

    /// Creates the folder if it is missing, with access for this user only.
    ///
    /// # Errors
    /// Fails with [`DriverError::Cache`] if the folder or the file cannot be used.
    pub fn create(&self) -> Result<(), DriverError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.folder);
        made.map_err(|error| refused(self.folder, error.to_string()))?;
        // Another process may have created the folder since the last check.
        Self::new(self.folder).map(|_| ())
    }

    /// Creates a file under a name that did not exist before. Does not follow a symbolic link of
    /// that name.
    fn create_part(&self, name: &str) -> Result<(File, PathBuf), DriverError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let part = self.folder.join(format!(".{name}.{}-{number}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part) {
                Ok(file) => return Ok((file, part)),
                // A process with the same process id left this file when it was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refused(&part, error.to_string())),
            }
        }
    }
}

/// Returns a 128-bit hash of the inputs of a file. Every version of this program computes the
/// same hash.
pub(super) fn key(parts: &[&str]) -> String {
    // The lengths separate the parts, because "ab", "c" and "a", "bc" must have different hashes.
    let joined: String = parts.iter().map(|part| format!("{} {part}", part.len())).collect();
    format!("{:032x}", xxh3_128(joined.as_bytes()))
}

fn refused(path: &Path, problem: String) -> DriverError {
    DriverError::Cache { path: path.to_owned(), problem }
}

/// Returns an error if a file belongs to a user other than this one and root, or if others may
/// write to it.
fn check_owner(about: &Metadata) -> Result<(), String> {
    let user = effective_user();
    let (owner, mode) = (about.uid(), about.mode());
    if owner != user && owner != 0 {
        return Err(format!("belongs to user {owner}, expected user {user} or root"));
    }
    // On many systems each user has a group with the user's number and no other member. Write
    // access for that group is harmless.
    let is_shared_group = about.gid() != about.uid();
    if mode & 0o002 != 0 || (mode & 0o020 != 0 && is_shared_group) {
        return Err(format!("other users may write it (mode {:03o})", mode & 0o777));
    }
    Ok(())
}

fn effective_user() -> u32 {
    // SAFETY: `geteuid` takes no arguments and does not access our memory.
    unsafe { libc::geteuid() }
}

fn seal(name: &str, code: &[u8], compiler: &str) -> String {
    format!("\n{MARK} {compiler} {} {:032x}\n", code.len(), checksum(name, code, compiler))
}

/// Returns the code of a file without its last line, after checking it against that line.
fn unseal(name: &str, mut bytes: Vec<u8>) -> Result<CachedCode, String> {
    const NO_LINE: &str = "has no checksum at its end: the file is empty or cut, or another \
                           version of this program wrote it";
    let absent = || NO_LINE.to_owned();
    let line_end = bytes.len().checked_sub(1).filter(|end| bytes[*end] == b'\n');
    let line_end = line_end.ok_or_else(absent)?;
    let start = bytes[..line_end].iter().rposition(|byte| *byte == b'\n').ok_or_else(absent)?;
    let line = String::from_utf8_lossy(&bytes[start + 1..line_end]).into_owned();
    let line = line.strip_prefix(MARK).ok_or_else(absent)?;
    let [compiler, length, sum] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(absent());
    };
    bytes.truncate(start);
    if length != bytes.len().to_string() {
        return Err(format!("expected {length} bytes of code, got {}", bytes.len()));
    }
    let got = format!("{:032x}", checksum(name, &bytes, compiler));
    if sum != got {
        return Err(format!("expected checksum {sum}, got {got}: the file was altered"));
    }
    Ok(CachedCode { code: bytes, compiler: compiler.to_owned() })
}

fn checksum(name: &str, code: &[u8], compiler: &str) -> u128 {
    let mut hasher = Xxh3Default::new();
    // The checksum includes the file's name, so that a file with the code of another kernel is
    // rejected.
    for part in [name.as_bytes(), b"\n", compiler.as_bytes(), b"\n", code] {
        hasher.update(part);
    }
    hasher.digest128()
}

#[cfg(test)]
mod tests;
