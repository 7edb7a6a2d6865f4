//! Creates, observes and removes the folder in which a process writes its trace, below the folder
//! that Kineto allows.
//!
//! Kineto silently writes nothing if the folder is not writable. So the folder is created, given to
//! the process's user, and checked before a request is sent. The process controls the content of
//! the folder, so files are opened with [`untrusted`] and copied from the checked descriptor.

use std::path::PathBuf;
use std::sync::Arc;

use memchr::memmem;
use schema::Bytes;
use serde::{Deserialize, Serialize};

use super::request::Sight;
use crate::process::Process;
use crate::untrusted::{
    self, Copying, Credentials, Expected, Insertion, OwnFolder, Owner, UntrustedFile,
    UntrustedFolder,
};

/// The folder in which Kineto allows traces by default.
const DEFAULT: &str = "/tmp/";
/// The environment variable of a process that overrides this folder.
pub const VARIABLE: &str = "KINETO_ONDEMAND_TRACE_DIR";
/// Number of bytes at the start of a trace that are searched for the trace id.
const HEAD: u64 = 1 << 20;

/// The reason why a process cannot write a trace.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    /// The folder that Kineto allows does not exist.
    #[error("{}: no such folder ({VARIABLE} of the process)", folder.display())]
    Missing { folder: PathBuf },
    /// The path of Kineto's folder is not absolute.
    #[error("{}: expected an absolute path without '..' ({VARIABLE} of the process)", folder.display())]
    Relative { folder: PathBuf },
    /// Kineto's folder is not usable, or a subfolder cannot be created in it.
    #[error("{source} ({VARIABLE} of the process is {})", folder.display())]
    Unusable { folder: PathBuf, source: untrusted::UntrustedError },
}

/// The staging folder for the trace of one process. On drop, the folder is removed together with
/// the process's files in it.
#[derive(Debug)]
pub struct Staging {
    inside: PathBuf,
    name: String,
    allowed: UntrustedFolder,
    folder: UntrustedFolder,
    uid: u32,
    expected: Expected,
    finished: Option<UntrustedFile>,
    record: StagingRecord,
    is_removed: bool,
}

/// The location of a staging folder. The agent saves it to disk, so that the folder can be removed
/// even after the agent was killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingRecord {
    root: PathBuf,
    folder: PathBuf,
    name: String,
    who: Credentials,
}

impl StagingRecord {
    /// Removes the staging folder with the files of its user, and returns whether the folder was
    /// removed.
    pub fn remove(&self) -> bool {
        let removed =
            UntrustedFolder::open(&self.root, &self.folder, &self.who).and_then(|allowed| {
                let made = allowed.enter(&self.name)?;
                Ok(allowed.remove(&self.name, &made, self.who.uid))
            });
        removed.unwrap_or(false)
    }
}

impl Staging {
    /// Creates the folder `name` below the folder that Kineto allows the process, accessible to the
    /// process's user only. Files larger than `size_max` will not be read.
    ///
    /// # Errors
    /// Fails if the allowed folder is missing, may not be searched by the user, or cannot contain
    /// another folder.
    pub fn prepare(process: &Process, name: &str, size_max: Bytes) -> Result<Self, StagingError> {
        let folder = PathBuf::from(allowed(process));
        if !folder.is_absolute() || folder.to_string_lossy().contains("..") {
            return Err(StagingError::Relative { folder });
        }
        let who = process.credentials();
        let opened = UntrustedFolder::open(&process.root(), &folder, &who)
            .and_then(|allowed| allowed.make(name, &who).map(|made| (allowed, made)));
        let (allowed, made) = match opened {
            Ok(opened) => opened,
            Err(untrusted::UntrustedError::Missing { .. }) => {
                return Err(StagingError::Missing { folder });
            }
            Err(source) => return Err(StagingError::Unusable { folder, source }),
        };
        let uid = who.uid;
        let (inside, root) = (folder.join(name), process.root());
        Ok(Self {
            inside,
            name: name.to_owned(),
            allowed,
            folder: made,
            uid,
            expected: Expected { owner: Owner::Only(uid), size_max },
            finished: None,
            record: StagingRecord { root, folder, name: name.to_owned(), who },
            is_removed: false,
        })
    }

    /// Returns the path of the trace to put into the request, as the process sees it.
    pub fn requested(&self) -> PathBuf {
        self.inside.join("trace.json")
    }

    /// Observes the process and its trace file. `pid` is the process's id in its own namespace.
    ///
    /// A completed file stays open, so that the file that is copied is the file that was checked.
    pub fn look(&mut self, process: &Process, pid: i32) -> Sight {
        // The process is checked before the file. In the other order, a process that completes its
        // file and ends in between would seem to have ended without a trace.
        let is_alive = process.is_alive();
        let mut sight = Sight { is_alive, ..Sight::default() };
        match self.find(pid, &mut sight) {
            Ok(()) => {}
            Err(error) => sight.refused = Some(error.to_string()),
        }
        if !self.allowed.holds(&self.name, &self.folder) {
            let folder = self.inside.display();
            sight.unwritable =
                Some(format!("{folder}: the folder was replaced after its creation"));
        }
        sight
    }

    fn find(&mut self, pid: i32, sight: &mut Sight) -> Result<(), StagingRefusal> {
        let name = format!("trace_{pid}.json");
        if let Some(file) = self.folder.file(&name, &self.expected)? {
            let head = file.head(HEAD)?;
            // Kineto writes only plain JSON objects. Compressed content is refused, because it
            // could unpack to any size.
            if head.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
                return Err(StagingRefusal::NotJson(self.inside.join(name)));
            }
            sight.finished = Some(trace_id(&head).unwrap_or_default());
            self.finished = Some(file);
            return Ok(());
        }
        sight.growing = self.folder.size(&format!("{name}.tmp"), &self.expected)?;
        Ok(())
    }

    /// Starts to copy the completed trace of `process` to the file `name` in `folder`. Returns
    /// `None` if there is no completed trace.
    ///
    /// Kineto writes a job's rank and size (`distributedInfo`) only with NCCL. Otherwise they are
    /// inserted into the copy from `RANK` and `WORLD_SIZE`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if the copy cannot be created.
    pub fn collect(
        &mut self,
        process: &Process,
        folder: &Arc<OwnFolder>,
        name: &str,
    ) -> Result<Option<Copying>, untrusted::UntrustedError> {
        let Some(file) = self.finished.take() else { return Ok(None) };
        let insertion = match (process.rank(), process.world_size()) {
            (Some(rank), Some(size)) => distributed_info(&file.head(HEAD)?, rank, size),
            _ => None,
        };
        Copying::begin(file, folder, name, insertion).map(Some)
    }

    /// Returns the record with which the folder can be removed after the agent was killed.
    pub fn record(&self) -> &StagingRecord {
        &self.record
    }

    /// Returns the size of the completed trace, if there is one.
    pub fn finished_bytes(&self) -> Option<u64> {
        self.finished.as_ref().map(UntrustedFile::size)
    }

    /// Removes the staging folder. Returns the folder's path if entries that do not belong to the
    /// process remain in it.
    pub fn remove(mut self) -> Option<PathBuf> {
        self.is_removed = true;
        let is_gone = self.allowed.remove(&self.name, &self.folder, self.uid);
        (!is_gone).then(|| self.inside.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_removed {
            // The request ended without a trace, so files that the process left here are removed.
            self.allowed.remove(&self.name, &self.folder, self.uid);
        }
    }
}

/// The reason why a completed file is not read.
#[derive(Debug, thiserror::Error)]
enum StagingRefusal {
    #[error(transparent)]
    File(#[from] untrusted::UntrustedError),
    #[error("{}: expected JSON, which begins with {{", .0.display())]
    NotJson(PathBuf),
}

/// Returns the folder that Kineto allows a process.
pub fn allowed(process: &Process) -> &str {
    process.variable(VARIABLE).filter(|folder| !folder.is_empty()).unwrap_or(DEFAULT)
}

/// Builds the entry `distributedInfo` with rank and world size, which is inserted before the first
/// key. Returns `None` if the header already has this entry, or if the end of the header is not
/// within `head`.
fn distributed_info(head: &[u8], rank: u32, size: u32) -> Option<Insertion> {
    let events = memmem::find(head, b"\"traceEvents\"")?;
    let at = head.iter().position(|&byte| byte == b'{')? + 1;
    if memmem::find(&head[..events], b"\"distributedInfo\"").is_some() {
        return None;
    }
    let text = format!("\n  \"distributedInfo\": {{\"rank\": {rank}, \"world_size\": {size}}},");
    Some(Insertion { at: at as u64, text })
}

/// Extracts the trace id from the first bytes of a trace.
fn trace_id(head: &[u8]) -> Option<String> {
    let at = memmem::find(head, b"\"trace_id\"")?;
    let rest = &head[at + 10..];
    let from = rest.iter().position(|&byte| byte == b'"')? + 1;
    let length = rest[from..].iter().position(|&byte| byte == b'"')?;
    Some(String::from_utf8_lossy(&rest[from..from + length]).into_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use schema::Bytes;

    use super::{Staging, StagingError, VARIABLE};
    use crate::process::Process;
    use crate::untrusted;

    const SIZE_MAX: Bytes = Bytes(1 << 20);
    const LONG: Duration = Duration::from_secs(60);

    fn hold(folder: &Path) -> Arc<untrusted::OwnFolder> {
        Arc::new(untrusted::OwnFolder::hold(folder).unwrap())
    }

    fn process(allowed: &Path) -> Process {
        let own = Process::read(std::process::id()).unwrap();
        let allowed = allowed.display().to_string();
        Process { environment: Some(BTreeMap::from([(VARIABLE.to_owned(), allowed)])), ..own }
    }

    #[test]
    fn trace_is_copied_after_it_is_complete() {
        let (place, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let process = process(place.path());
        let mut staging = Staging::prepare(&process, "rowmill-1", SIZE_MAX).unwrap();
        assert_eq!(staging.requested(), place.path().join("rowmill-1/trace.json"));
        let sight = staging.look(&process, 7);
        assert!(sight.is_alive && sight.growing.is_none() && sight.finished.is_none());
        let finished = place.path().join("rowmill-1/trace_7.json");
        let tmp = place.path().join("rowmill-1/trace_7.json.tmp");
        fs::write(&tmp, "{\n  \"trace_id\": \"id-1\",").unwrap();
        assert_eq!(staging.look(&process, 7).growing, Some(23));
        let (target, to) = (to.path().join("rank-0.json"), hold(to.path()));
        assert!(staging.collect(&process, &to, "rank-0.json").unwrap().is_none());
        fs::rename(&tmp, &finished).unwrap();
        assert_eq!(staging.look(&process, 7).finished.as_deref(), Some("id-1"));
        let mut copying = staging.collect(&process, &to, "rank-0.json").unwrap().unwrap();
        assert_eq!(copying.step(LONG).unwrap(), Some(23));
        assert_eq!(fs::read(&target).unwrap(), b"{\n  \"trace_id\": \"id-1\",");
        assert_eq!(staging.remove(), None);
        assert!(!place.path().join("rowmill-1").exists());
    }

    #[test]
    fn rank_and_size_are_inserted_if_missing() {
        let (place, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut process = process(place.path());
        let variables = process.environment.as_mut().unwrap();
        variables.insert("RANK".into(), "3".into());
        variables.insert("WORLD_SIZE".into(), "4".into());
        let (target, to) = (to.path().join("rank-3.json"), hold(to.path()));
        let copied = |text: &str| {
            let mut staging = Staging::prepare(&process, "r", SIZE_MAX).unwrap();
            fs::write(place.path().join("r/trace_7.json"), text).unwrap();
            staging.look(&process, 7);
            let mut copying = staging.collect(&process, &to, "rank-3.json").unwrap().unwrap();
            let bytes = copying.step(LONG).unwrap().unwrap();
            let copy = fs::read_to_string(&target).unwrap();
            assert_eq!(copy.len() as u64, bytes);
            copy
        };
        let gloo = "{\n\"schemaVersion\": 1, \"traceEvents\": [{\"rank\": 9}]}";
        let expected =
            "{\n  \"distributedInfo\": {\"rank\": 3, \"world_size\": 4},\n\"schemaVersion\"";
        assert!(copied(gloo).starts_with(expected), "{}", copied(gloo));
        assert!(copied(gloo).ends_with("[{\"rank\": 9}]}"));
        for as_it_is in ["{\"distributedInfo\": {\"rank\": 1}, \"traceEvents\": []}", "{}"] {
            assert_eq!(copied(as_it_is), as_it_is);
        }
    }

    #[test]
    fn removed_or_replaced_folder_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let process = process(place.path());
        for is_replaced in [false, true] {
            let mut staging = Staging::prepare(&process, "r", SIZE_MAX).unwrap();
            let folder = place.path().join("r");
            fs::rename(&folder, place.path().join("away")).unwrap();
            if is_replaced {
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("trace_7.json"), "{\"trace_id\": \"id-1\"}").unwrap();
            }
            let sight = staging.look(&process, 7);
            assert!(sight.unwritable.is_some() && sight.finished.is_none(), "{sight:?}");
            // `remove` must keep the folder that replaced the staging folder.
            assert_eq!(staging.remove(), Some(folder.clone()));
            assert_eq!(folder.join("trace_7.json").exists(), is_replaced);
            fs::remove_dir_all(place.path().join("away")).unwrap();
        }
    }

    #[test]
    fn file_without_an_id_counts_as_complete() {
        let place = tempfile::tempdir().unwrap();
        let process = process(place.path());
        let mut staging = Staging::prepare(&process, "r", SIZE_MAX).unwrap();
        for text in ["{}", "{\"trace_id\"", "{\"trace_id\": \"cut"] {
            fs::write(place.path().join("r/trace_1.json"), text).unwrap();
            assert_eq!(staging.look(&process, 1).finished.as_deref(), Some(""), "{text}");
        }
        for text in ["", " ", "[]", "\x1f\u{8b}"] {
            fs::write(place.path().join("r/trace_1.json"), text).unwrap();
            let refused = staging.look(&process, 1).refused.unwrap();
            assert!(refused.contains("expected JSON, which begins with {"), "{refused}");
        }
    }

    #[test]
    fn unwritable_folder_is_an_error_before_the_request() {
        let place = tempfile::tempdir().unwrap();
        let prepare = |path: &Path, uid: u32| {
            let process = Process { uid, groups: Vec::new(), ..process(path) };
            Staging::prepare(&process, "r", SIZE_MAX).map(drop).unwrap_err()
        };
        let missing = prepare(&place.path().join("none"), 0);
        assert!(matches!(missing, StagingError::Missing { .. }), "{missing}");
        assert!(matches!(prepare(Path::new("traces"), 0), StagingError::Relative { .. }));
        assert!(matches!(prepare(Path::new("/tmp/../tmp"), 0), StagingError::Relative { .. }));
        let why = |mode: u32| {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            let found = fs::metadata(place.path()).unwrap();
            let process = Process { gid: found.gid() + 12345, ..process(place.path()) };
            let other = Process { uid: found.uid() + 12345, groups: Vec::new(), ..process };
            match Staging::prepare(&other, "r", SIZE_MAX) {
                Err(StagingError::Unusable { source, .. }) => Some(source),
                _ => None,
            }
        };
        let closed = why(0o700);
        assert!(matches!(closed, Some(untrusted::UntrustedError::Closed { .. })), "{closed:?}");
        let unwritable = why(0o755);
        assert!(
            matches!(unwritable, Some(untrusted::UntrustedError::Unwritable { .. })),
            "{unwritable:?}"
        );
        let twice = process(place.path());
        let first = Staging::prepare(&twice, "r", SIZE_MAX).unwrap();
        assert!(matches!(
            Staging::prepare(&twice, "r", SIZE_MAX),
            Err(StagingError::Unusable { .. })
        ));
        drop(first);
    }
}
