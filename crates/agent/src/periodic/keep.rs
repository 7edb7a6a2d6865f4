//! The kept traces: one folder each, with the trace and its weight. Removes the oldest when there
//! are too many. Knows no budget but that of the disk.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fleet::wire::TraceFile;
use serde::Serialize;

use crate::file;

/// Metadata stored with a trace.
const SAMPLE: &str = "sample.json";

/// A kept trace and its weight.
#[derive(Debug, Serialize)]
pub struct KeptTrace<'a> {
    /// Of this form.
    pub version: u32,
    /// Its name.
    pub token: &'a str,
    /// When it was requested.
    pub begun_unix_ms: u64,
    /// The host.
    pub host: &'a str,
    /// The workflow type.
    pub workflow: &'a str,
    /// Its job, by its scheduler.
    pub job: Option<&'a str>,
    /// Its user; `None` where the process ended meanwhile.
    pub uid: Option<u32>,
    /// The process.
    pub pid: u32,
    /// Its rank.
    pub rank: Option<u32>,
    /// Steps it has.
    pub steps: u32,
    /// How many steps of the workflow type on this host each of its steps represents.
    pub weight: f64,
    /// Nanoseconds of a step before the request.
    pub step_ns_before: f64,
    /// Nanoseconds of a step from then until it was written.
    pub step_ns_while: Option<f64>,
    /// The trace.
    pub file: &'a TraceFile,
}

/// Where traces are kept.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    bytes_max: u64,
}

impl Shelf {
    /// Traces below a folder, made for its owner alone.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: PathBuf, bytes_max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        for entry in fs::read_dir(&folder)?.flatten() {
            // An agent that was killed left it behind: without its weight it stands for nothing.
            if !entry.path().join(SAMPLE).exists() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(Self { folder, bytes_max })
    }

    /// Takes a trace from another folder of the same disk.
    ///
    /// # Errors
    /// The trace cannot be moved, or its metadata cannot be written.
    pub fn put(&self, from: &Path, sample: &KeptTrace<'_>) -> io::Result<()> {
        let own = self.folder.join(sample.token);
        DirBuilder::new().mode(0o700).create(&own)?;
        fs::rename(from, own.join(&sample.file.name))?;
        let mut text = serde_json::to_vec_pretty(sample)?;
        text.push(b'\n');
        file::replace(&own.join(SAMPLE), &text)?;
        File::open(&own)?.sync_all()?;
        self.bound()
    }

    /// Removes the oldest: their names begin with their time.
    fn bound(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
            kept.push((entry.file_name(), bytes));
        }
        kept.sort();
        let mut all: u64 = kept.iter().map(|(_, bytes)| bytes).sum();
        for (name, bytes) in kept {
            if all <= self.bytes_max {
                break;
            }
            fs::remove_dir_all(self.folder.join(name))?;
            all -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fleet::wire::TraceFile;

    use super::{KeptTrace, Shelf};

    #[test]
    fn a_trace_is_kept_with_its_weight_until_younger_ones_need_its_room() {
        let root = tempfile::tempdir().unwrap();
        let shelf = root.path().join("periodic");
        fs::create_dir_all(shelf.join("0-half")).unwrap();
        let shelf = Shelf::open(shelf, 2500).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(root.path().join("periodic"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert!(names().is_empty(), "what has no weight is gone");
        for token in ["1-a", "2-b", "3-c"] {
            let from = root.path().join("rank-0.json.gz");
            fs::write(&from, [0; 700]).unwrap();
            let name = "rank-0.json.gz".to_owned();
            let checksum = "0".repeat(16);
            let file = TraceFile { name, bytes: 700, bytes_unpacked: 900, checksum };
            let sample = KeptTrace {
                version: 1,
                token,
                begun_unix_ms: 1,
                host: "h",
                workflow: "w",
                job: None,
                uid: Some(7),
                pid: 8,
                rank: Some(0),
                steps: 5,
                weight: 200.0,
                step_ns_before: 1e6,
                step_ns_while: None,
                file: &file,
            };
            shelf.put(&from, &sample).unwrap();
            assert!(!from.exists());
        }
        assert_eq!(names(), ["2-b", "3-c"]);
        let text = fs::read_to_string(root.path().join("periodic/3-c/sample.json")).unwrap();
        assert!(text.contains("\"weight\": 200.0") && text.contains("\"steps\": 5"), "{text}");
    }
}
