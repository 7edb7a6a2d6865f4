//! The folder of kept periodic traces. Each trace has a folder with the trace and its weight. The
//! oldest traces are removed when they exceed their disk budget.

use std::fs::File;
use std::io;
use std::path::Path;

use fleet::untrusted::{MissingFolder, OFlags, OwnFolder};
use fleet::wire::{TraceFile, TraceRow, TraceState};
use serde::{Deserialize, Serialize};

/// Name of the file with the metadata of a trace.
const SAMPLE: &str = "sample.json";
/// Largest size in bytes of the file with the metadata. A larger file was not written by the agent.
const SAMPLE_MAX: u64 = 1 << 20;

/// Metadata of a kept trace, with the weight of its steps.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptTrace {
    pub version: u32,
    pub token: String,
    /// Time at which the trace was requested, in milliseconds since 1970.
    pub begun_unix_ms: u64,
    pub host: String,
    pub workflow: String,
    /// Id that the scheduler assigned to the job.
    pub job: Option<String>,
    pub uid: u32,
    pub pid: u32,
    pub rank: Option<u32>,
    pub steps: u32,
    /// Number of steps of the workflow type on this host that each recorded step represents.
    pub weight: f64,
    /// Mean nanoseconds of a step before the trace was requested.
    pub step_ns_before: f64,
    /// Mean nanoseconds of a step from the request until the trace was written.
    pub step_ns_while: Option<f64>,
    /// Standard deviation of the slowdown that steps show without a trace, as a share.
    pub slowdown_spread: Option<f64>,
    pub file: TraceFile,
}

impl KeptTrace {
    /// Returns the trace as the state of an order with the name `token` that has ended.
    pub fn to_state(&self, token: &str) -> TraceState {
        let row = TraceRow {
            pid: self.pid,
            rank: self.rank,
            command: self.workflow.clone(),
            state: "written".to_owned(),
            reason: None,
            file: Some(self.file.clone()),
        };
        TraceState { token: token.to_owned(), is_over: true, rows: vec![row] }
    }
}

/// Reads the metadata of the kept trace `name` below the folder of kept traces. Returns `None` if
/// the trace has been removed.
pub fn find(folder: &Path, name: &str) -> Option<KeptTrace> {
    serde_json::from_slice(&own_folder(folder, name)?.read(SAMPLE, SAMPLE_MAX).ok()??).ok()
}

/// Opens one file in the folder of a periodic trace that was kept. Returns `None` if the trace has
/// been removed.
pub fn open_file(folder: &Path, name: &str, file: &str) -> Option<File> {
    own_folder(folder, name)?.open_file(file, OFlags::RDONLY).ok()
}

/// Opens the folder of one kept trace. The name may come from a hub, so it must be one component
/// of a path.
fn own_folder(folder: &Path, name: &str) -> Option<OwnFolder> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    OwnFolder::open(folder, MissingFolder::Refuse).ok()?.folder(name).ok()
}

/// The folder of kept periodic traces, limited in size.
#[derive(Debug)]
pub struct TraceStore {
    folder: OwnFolder,
    bytes_max: u64,
}

impl TraceStore {
    /// Opens the folder of kept traces. A new folder is accessible to the agent's user only.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        let folder = OwnFolder::open(folder, MissingFolder::Make(0o700))?;
        for name in folder.names()? {
            // A folder without metadata was left by a killed agent. The trace in such a folder has
            // no weight, so it is useless.
            let is_whole = folder.folder(&name).is_ok_and(|kept| kept.size(SAMPLE) > 0);
            if !is_whole {
                let _ = folder.remove_tree(&name);
            }
        }
        Ok(Self { folder, bytes_max })
    }

    /// Moves a trace into the store from another folder of the same disk, and writes its metadata.
    ///
    /// # Errors
    /// If the trace cannot be moved or its metadata cannot be written.
    pub fn put(&self, from: &OwnFolder, sample: &KeptTrace) -> io::Result<()> {
        let own = self.folder.make_folder(&sample.token)?;
        from.rename(&sample.file.name, &own, &sample.file.name)?;
        let mut text = serde_json::to_vec_pretty(sample)?;
        text.push(b'\n');
        own.replace(SAMPLE, &text)?;
        own.sync();
        self.bound()
    }

    /// Removes the oldest traces until the store is within its limit. The names of folders begin
    /// with the time, so they sort by age.
    fn bound(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for name in self.folder.names()? {
            let own = self.folder.folder(&name)?;
            let bytes: u64 = own.names()?.iter().map(|file| own.size(file)).sum();
            kept.push((name, bytes));
        }
        kept.sort();
        let mut all: u64 = kept.iter().map(|(_, bytes)| bytes).sum();
        for (name, bytes) in kept {
            if all <= self.bytes_max {
                break;
            }
            self.folder.remove_tree(name)?;
            all -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fleet::untrusted::OwnFolder;
    use fleet::wire::TraceFile;

    use super::{KeptTrace, TraceStore, find, open_file};

    #[test]
    fn traces_are_kept_with_their_weight_until_newer_ones_exceed_the_limit() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("periodic");
        fs::create_dir_all(store.join("0-half")).unwrap();
        let store = TraceStore::open(&store, 2500).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(root.path().join("periodic"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert!(names().is_empty(), "folders without a weight are removed");
        for token in ["1-a", "2-b", "3-c"] {
            let from = root.path().join("rank-0.json.gz");
            fs::write(&from, [0; 700]).unwrap();
            let name = "rank-0.json.gz".to_owned();
            let checksum = "0".repeat(16);
            let file = TraceFile { name, bytes: 700, bytes_unpacked: 900, checksum };
            let sample = KeptTrace {
                version: 1,
                token: token.to_owned(),
                begun_unix_ms: 1,
                host: "h".to_owned(),
                workflow: "w".to_owned(),
                job: None,
                uid: 7,
                pid: 8,
                rank: Some(0),
                steps: 5,
                weight: 200.0,
                step_ns_before: 1e6,
                step_ns_while: None,
                slowdown_spread: None,
                file,
            };
            store.put(&OwnFolder::hold(root.path()).unwrap(), &sample).unwrap();
            assert!(!from.exists());
        }
        assert_eq!(names(), ["2-b", "3-c"]);
        let text = fs::read_to_string(root.path().join("periodic/3-c/sample.json")).unwrap();
        let folder = root.path().join("periodic");
        let state = find(&folder, "3-c").unwrap().to_state("hub-1");
        assert_eq!((state.token.as_str(), state.is_over), ("hub-1", true));
        assert!(open_file(&folder, "3-c", "rank-0.json.gz").is_some());
        assert!(find(&folder, "1-a").is_none() && find(&folder, "../periodic/3-c").is_none());
        assert!(text.contains("\"weight\": 200.0") && text.contains("\"steps\": 5"), "{text}");
    }
}
