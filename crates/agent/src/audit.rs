//! The audit log: who requested what, from where, and the outcome, one JSON line each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use serde::Serialize;

use crate::state::{lock, unix_ns};

/// Where audit lines go.
#[derive(Debug)]
pub struct Audit {
    file: Option<Mutex<File>>,
}

/// One line.
#[derive(Debug, Serialize)]
struct AuditLine<'a> {
    audit: u64,
    who: &'a str,
    verb: &'a str,
    what: &'a str,
    outcome: &'a str,
}

impl Audit {
    /// Lines go to the end of a file, or to stderr.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let options = |path| OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        Ok(Self { file: path.map(options).transpose()?.map(Mutex::new) })
    }

    /// Writes a line.
    pub fn line(&self, who: &str, verb: &str, what: &str, outcome: &str) {
        let line = AuditLine { audit: unix_ns() / 1_000_000, who, verb, what, outcome };
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        // A full disk must not stop the agent; the line is on stderr then.
        let is_written = self.file.as_ref().is_some_and(|file| {
            let mut file = lock(file);
            file.write_all(text.as_bytes()).is_ok()
        });
        if !is_written {
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}
