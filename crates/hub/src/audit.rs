//! The audit log: who asked for what, when, and with which result, as a line of JSON each. It lies
//! in the store, and old lines make room for new ones.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::error::Error;
use crate::log::say;
use crate::tokens::TokenRole;

/// Size in bytes at which a file is closed.
const SIZE_MAX: u64 = 16 << 20;
/// Number of closed files that are kept.
const CLOSED_MAX: u32 = 8;
/// Largest number of lines per minute about callers who are unknown, so that they cannot push out
/// other lines.
const UNKNOWN_PER_MINUTE: u64 = 60;

/// One request and its result.
#[derive(Debug, Serialize)]
pub struct AuditLine<'a> {
    /// Name of the token or of the proxy's user, if the caller is known.
    pub who: Option<&'a str>,
    pub role: Option<TokenRole>,
    pub is_by_proxy: bool,
    pub address: IpAddr,
    pub method: &'a str,
    /// Path with the query.
    pub path: &'a str,
    pub status: u16,
    /// Reason of a refusal, or what was changed.
    pub note: Option<&'a str>,
}

/// What a handler adds to the line of its request, as an extension of its response.
#[derive(Clone, Debug)]
pub struct AuditNote(pub String);

/// The log of a store.
#[derive(Debug)]
pub struct AuditLog {
    folder: PathBuf,
    size_max: u64,
    state: Mutex<AuditState>,
}

/// The open file and the counts that bound it.
#[derive(Debug)]
struct AuditState {
    file: File,
    size: u64,
    /// Minute since 1970 of the last line about an unknown caller.
    minute: i64,
    /// Number of lines about unknown callers in that minute.
    unknown: u64,
    /// Number of lines that were left out since the last line.
    left_out: u64,
    is_failing: bool,
}

/// A line as it is written.
#[derive(Serialize)]
struct TimedLine<'a> {
    time: String,
    #[serde(flatten)]
    line: &'a AuditLine<'a>,
    /// Number of requests of unknown callers before this one that have no line.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
}

impl AuditLog {
    /// Opens the log in the folder of a store.
    ///
    /// # Errors
    /// If the folder or file cannot be created.
    pub fn open(store: &Path) -> Result<Self, Error> {
        Self::with_size(store, SIZE_MAX)
    }

    fn with_size(store: &Path, size_max: u64) -> Result<Self, Error> {
        let folder = store.join("audit");
        fs::create_dir_all(&folder).map_err(Error::io(&folder, "create the folder"))?;
        let path = folder.join("audit.jsonl");
        let file = open_file(&path).map_err(Error::io(&path, "open"))?;
        let size = file.metadata().map_err(Error::io(&path, "read"))?.len();
        let state =
            AuditState { file, size, minute: 0, unknown: 0, left_out: 0, is_failing: false };
        Ok(Self { folder, size_max, state: Mutex::new(state) })
    }

    /// Appends a line. A full disk is reported once, and does not stop the hub.
    pub fn write(&self, line: &AuditLine, now: DateTime<Utc>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if line.who.is_none() && !state.admit_unknown(now) {
            return;
        }
        let left_out = Some(std::mem::take(&mut state.left_out)).filter(|count| *count > 0);
        let time = now.to_rfc3339_opts(SecondsFormat::Millis, true);
        let text = serde_json::to_string(&TimedLine { time, line, left_out }).unwrap_or_default();
        let written = self.append(&mut state, &format!("{text}\n"));
        if let Err(error) = &written
            && !state.is_failing
        {
            say(&format!("error: the audit log is not written: {error}"));
        }
        state.is_failing = written.is_err();
    }

    fn append(&self, state: &mut AuditState, text: &str) -> std::io::Result<()> {
        if state.size > 0 && state.size + text.len() as u64 > self.size_max {
            let closed = |number: u32| self.folder.join(format!("audit.{number}.jsonl"));
            for number in (1..CLOSED_MAX).rev() {
                // A file exists only after so many have been closed.
                let _ = fs::rename(closed(number), closed(number + 1));
            }
            let path = self.folder.join("audit.jsonl");
            fs::rename(&path, closed(1))?;
            (state.file, state.size) = (open_file(&path)?, 0);
        }
        state.file.write_all(text.as_bytes())?;
        state.size += text.len() as u64;
        Ok(())
    }
}

impl AuditState {
    fn admit_unknown(&mut self, now: DateTime<Utc>) -> bool {
        let minute = now.timestamp() / 60;
        if minute != self.minute {
            (self.minute, self.unknown) = (minute, 0);
        }
        self.unknown += 1;
        let is_admitted = self.unknown <= UNKNOWN_PER_MINUTE;
        self.left_out += u64::from(!is_admitted);
        is_admitted
    }
}

/// Opens a file that only the hub's user may read, because it has names of users.
fn open_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use chrono::DateTime;
    use testkit::Folder;

    use super::{AuditLine, AuditLog, CLOSED_MAX, UNKNOWN_PER_MINUTE};

    fn line(who: Option<&str>) -> AuditLine<'_> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let path = "/hub/v1/sums?by=user";
        let (method, role, is_by_proxy) = ("GET", None, false);
        AuditLine { who, role, is_by_proxy, address, method, path, status: 200, note: None }
    }

    #[test]
    fn old_files_make_room_and_unknown_callers_have_few_lines() {
        let folder = Folder::new();
        let log = AuditLog::with_size(folder.root(), 4096).unwrap();
        let time = |seconds: i64| DateTime::from_timestamp(seconds, 0).unwrap();
        for _ in 0..UNKNOWN_PER_MINUTE + 5 {
            log.write(&line(None), time(59));
        }
        log.write(&line(Some("anna\n")), time(60));
        let text = std::fs::read_to_string(folder.path("audit/audit.jsonl")).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.contains(r#""left_out":5"#) && last.contains(r#""who":"anna\n""#), "{last}");
        assert!(last.starts_with(r#"{"time":"1970-01-01T00:01:00.000Z","#), "{last}");
        for _ in 0..600 {
            log.write(&line(Some("anna")), time(60));
        }
        drop(log);
        let log = AuditLog::with_size(folder.root(), 4096).unwrap();
        log.write(&line(Some("bob")), time(60));
        let files = std::fs::read_dir(folder.path("audit")).unwrap();
        let sizes: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
        assert!(sizes.len() as u32 == CLOSED_MAX + 1 && sizes.iter().all(|size| *size <= 4096));
        let text = std::fs::read_to_string(folder.path("audit/audit.jsonl")).unwrap();
        assert!(text.lines().last().unwrap().contains("bob"));
    }
}
