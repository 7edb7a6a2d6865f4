//! Where a process writes its trace: a folder of its own below the one Kineto allows it.
//!
//! Kineto writes nothing, and says nothing, where it may not write; so the folder is made, given to
//! the process's user and checked before anything is asked. The finished file is moved away.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::request::Sight;
use crate::process::Process;

/// Where Kineto may write if nothing else is said.
const DEFAULT: &str = "/tmp/";
/// The variable that says something else.
pub const VARIABLE: &str = "KINETO_ONDEMAND_TRACE_DIR";
/// The trace id stands within the first bytes of a trace.
const HEAD: u64 = 1 << 20;

/// Why a process cannot write a trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kineto's folder is not there.
    #[error("{}: no such folder ({VARIABLE} of the process)", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// Kineto's folder is no absolute path.
    #[error("{}: expected an absolute path without '..' ({VARIABLE} of the process)", folder.display())]
    Relative {
        /// The folder.
        folder: PathBuf,
    },
    /// The process's user may not enter a folder on the way.
    #[error("{}: user {uid} may not enter it", folder.display())]
    Closed {
        /// The folder.
        folder: PathBuf,
        /// The user.
        uid: u32,
    },
    /// No folder can be made or given away.
    #[error("{}: cannot make a folder for user {uid}: {source}", folder.display())]
    Make {
        /// The folder.
        folder: PathBuf,
        /// The user.
        uid: u32,
        /// Why.
        source: io::Error,
    },
}

/// The folder of one process's trace; removed when dropped.
#[derive(Debug)]
pub struct Staging {
    inside: PathBuf,
    outside: PathBuf,
}

impl Staging {
    /// Makes the folder `name` below the one Kineto allows the process, for its user alone.
    ///
    /// # Errors
    /// The allowed folder is missing, closed to the user, or cannot hold another folder.
    pub fn prepare(process: &Process, name: &str) -> Result<Self, Error> {
        let allowed = PathBuf::from(allowed(process));
        if !allowed.is_absolute() || allowed.to_string_lossy().contains("..") {
            return Err(Error::Relative { folder: allowed });
        }
        let reached = process.path(&allowed);
        if !reached.is_dir() {
            return Err(Error::Missing { folder: allowed });
        }
        for folder in reached.ancestors() {
            if !may_enter(folder, process) {
                return Err(Error::Closed { folder: folder.to_owned(), uid: process.uid });
            }
        }
        let outside = reached.join(name);
        let made = DirBuilder::new().mode(0o700).create(&outside).and_then(|()| {
            let owner = fs::metadata(&outside)?.uid();
            if owner == process.uid {
                return Ok(());
            }
            chown(&outside, Some(process.uid), Some(process.gid))
        });
        let staging = Self { inside: allowed.join(name), outside };
        match made {
            Ok(()) => Ok(staging),
            Err(source) => Err(Error::Make { folder: allowed, uid: process.uid, source }),
        }
    }

    /// The file to ask for, as the process names it.
    pub fn requested(&self) -> PathBuf {
        self.inside.join("trace.json")
    }

    /// The file Kineto makes of it; `pid` is the process's own idea of its number.
    pub fn finished(&self, pid: i32) -> PathBuf {
        self.outside.join(format!("trace_{pid}.json"))
    }

    /// What process and file look like now.
    pub fn look(&self, process: &Process, pid: i32) -> Sight {
        // Before the file: what ends now may have written until now.
        let is_alive = process.is_alive();
        let finished = self.finished(pid);
        let growing = fs::metadata(with_tmp(&finished)).ok().map(|file| file.len());
        let is_there = self.outside.is_dir();
        Sight {
            is_alive,
            growing,
            finished: trace_id(&finished).ok(),
            unwritable: (!is_there)
                .then(|| format!("{}: the folder is gone", self.inside.display())),
        }
    }

    /// Moves the finished trace to `to`; its bytes.
    ///
    /// # Errors
    /// The file is gone, or cannot be written there.
    pub fn collect(&self, pid: i32, to: &Path) -> io::Result<u64> {
        let from = self.finished(pid);
        if fs::rename(&from, to).is_ok() {
            return Ok(fs::metadata(to)?.len());
        }
        // Another disk: the name appears when the file is whole.
        let partial = with_tmp(to);
        let copied = fs::copy(&from, &partial).and_then(|bytes| {
            fs::rename(&partial, to)?;
            Ok(bytes)
        });
        if copied.is_err() {
            // The error that is reported is the one before.
            let _ = fs::remove_file(&partial);
        }
        copied
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What a lost process left in it is not a trace.
        let _ = fs::remove_dir_all(&self.outside);
    }
}

/// The folder Kineto allows a process.
pub fn allowed(process: &Process) -> &str {
    process.variable(VARIABLE).filter(|folder| !folder.is_empty()).unwrap_or(DEFAULT)
}

/// Whether the process's user may pass through a folder, by its mode alone.
fn may_enter(folder: &Path, process: &Process) -> bool {
    let Ok(found) = fs::metadata(folder) else { return process.uid == 0 };
    let bit = if found.uid() == process.uid {
        0o100
    } else if found.gid() == process.gid {
        0o010
    } else {
        0o001
    };
    process.uid == 0 || found.mode() & bit != 0
}

fn with_tmp(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// The trace id of a finished file, empty where it names none.
fn trace_id(path: &Path) -> io::Result<String> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    let found = memmem::find(&head, b"\"trace_id\"").and_then(|at| {
        let rest = &head[at + 10..];
        let from = rest.iter().position(|&byte| byte == b'"')? + 1;
        let length = rest[from..].iter().position(|&byte| byte == b'"')?;
        Some(String::from_utf8_lossy(&rest[from..from + length]).into_owned())
    });
    Ok(found.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::{Error, Staging, VARIABLE};
    use crate::process::Process;

    fn process(allowed: &Path) -> Process {
        let own = Process::of(std::process::id()).unwrap();
        let allowed = allowed.display().to_string();
        Process { environment: Some(BTreeMap::from([(VARIABLE.to_owned(), allowed)])), ..own }
    }

    #[test]
    fn a_trace_grows_ends_and_is_moved() {
        let (place, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let process = process(place.path());
        let staging = Staging::prepare(&process, "rowmill-1").unwrap();
        assert_eq!(staging.requested(), place.path().join("rowmill-1/trace.json"));
        let sight = staging.look(&process, 7);
        assert!(sight.is_alive && sight.growing.is_none() && sight.finished.is_none());
        let tmp = place.path().join("rowmill-1/trace_7.json.tmp");
        fs::write(&tmp, "{\n  \"trace_id\": \"id-1\",").unwrap();
        assert_eq!(staging.look(&process, 7).growing, Some(23));
        fs::rename(&tmp, staging.finished(7)).unwrap();
        assert_eq!(staging.look(&process, 7).finished.as_deref(), Some("id-1"));
        let target = to.path().join("rank-0.json");
        assert_eq!(staging.collect(7, &target).unwrap(), 23);
        assert!(target.is_file() && staging.collect(7, &target).is_err());
        fs::remove_dir_all(place.path().join("rowmill-1")).unwrap();
        assert!(staging.look(&process, 7).unwritable.is_some());
        drop(staging);
        assert!(!place.path().join("rowmill-1").exists());
    }

    #[test]
    fn a_file_without_an_id_is_finished_all_the_same() {
        let place = tempfile::tempdir().unwrap();
        let process = process(place.path());
        let staging = Staging::prepare(&process, "r").unwrap();
        for text in ["{}", "{\"trace_id\"", "{\"trace_id\": \"cut"] {
            fs::write(staging.finished(1), text).unwrap();
            assert_eq!(staging.look(&process, 1).finished.as_deref(), Some(""), "{text}");
        }
    }

    #[test]
    fn what_the_process_could_not_write_is_refused_before() {
        let place = tempfile::tempdir().unwrap();
        let prepare = |path: &Path, uid: u32| {
            let process = Process { uid, ..process(path) };
            Staging::prepare(&process, "r").map(drop).unwrap_err()
        };
        let missing = prepare(&place.path().join("none"), 0);
        assert!(matches!(missing, Error::Missing { .. }), "{missing}");
        assert!(matches!(prepare(Path::new("traces"), 0), Error::Relative { .. }));
        assert!(matches!(prepare(Path::new("/tmp/../tmp"), 0), Error::Relative { .. }));
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let other = fs::metadata(place.path()).unwrap().uid() + 12345;
        let closed = prepare(place.path(), other);
        assert!(matches!(closed, Error::Closed { .. }), "{closed}");
        let twice = process(place.path());
        let first = Staging::prepare(&twice, "r").unwrap();
        assert!(matches!(Staging::prepare(&twice, "r"), Err(Error::Make { .. })));
        drop(first);
    }
}
