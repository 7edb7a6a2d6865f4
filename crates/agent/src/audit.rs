//! The audit log: one JSON line per request, with the caller, its address, the request and the
//! outcome. The length of lines, their rate and the size of the files are bounded, because every
//! refused request of a stranger adds a line.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fleet::plain::without_controls;
use fleet::quota::{Quotas, Rate};
use fleet::tracing::unix_ms;
use fleet::untrusted::{OwnFolder, UntrustedError};
use serde::Serialize;

/// Largest length in bytes of one text field of an audit line. Longer texts are truncated.
const FIELD_MAX: usize = 512;
/// Rate limit of the audit lines of one authenticated caller.
const CALLER: Rate = Rate { burst: 64.0, per_s: 4.0 };
/// Rate limit of the audit lines about all callers without a valid token together. Such callers may
/// use any number of addresses, and must not crowd out the lines of authenticated callers.
const STRANGERS: Rate = Rate { burst: 64.0, per_s: 8.0 };
/// Number of callers that have a rate limit of their own. All further callers share one limit.
const CALLERS_MAX: usize = 1024;

/// The audit log, shared by all threads. The log limits the rate of lines per caller and rotates
/// its file.
#[derive(Debug)]
pub struct Audit {
    log: Mutex<AuditLog>,
    began: Instant,
}

/// The open file of the audit log, with the rate limits that keep a caller from flooding it.
#[derive(Debug)]
struct AuditLog {
    file: Option<AuditFile>,
    callers: Quotas<String>,
    /// Rate limits for callers without a valid token: per address, and for all addresses together.
    /// These limits are separate from `callers`, so that many addresses cannot evict known callers.
    addresses: Quotas<String>,
    strangers: Quotas<()>,
}

/// The current audit file; the previous one has `.1` appended to its name.
#[derive(Debug)]
struct AuditFile {
    folder: OwnFolder,
    name: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

/// One line of the audit log, as JSON.
#[derive(Debug, Serialize)]
struct AuditLine<'a> {
    audit: u64,
    who: &'a str,
    verb: &'a str,
    what: &'a str,
    outcome: &'a str,
}

impl Audit {
    /// Opens the audit log: lines are appended to a file, or written to stderr. The file and its
    /// predecessor together have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If the file cannot be opened or does not belong to the agent's user.
    pub fn open(path: Option<&Path>, bytes_max: u64) -> Result<Self, UntrustedError> {
        let file = path.map(|path| AuditFile::open(path, bytes_max / 2)).transpose()?;
        let quotas = || Quotas::new(CALLER, CALLERS_MAX);
        let strangers = Quotas::new(STRANGERS, 1);
        let log = AuditLog { file, callers: quotas(), addresses: quotas(), strangers };
        let log = Mutex::new(log);
        Ok(Self { log, began: Instant::now() })
    }

    /// Checks that the audit file could be opened, without creating it.
    ///
    /// # Errors
    /// If the folder of the file is missing, or the file does not belong to the agent's user.
    pub fn check(path: &Path) -> Result<(), UntrustedError> {
        let (folder, name) = place(path)?;
        if folder.owner(&name).is_some() {
            folder.append(&name)?;
        }
        Ok(())
    }

    /// Writes a line unless the caller has exceeded its rate limit.
    pub fn line(&self, who: &str, verb: &str, what: &str, outcome: &str) {
        let who = cut(who);
        let mut log = self.lock();
        if log.callers.take(self.began.elapsed(), &who) {
            log.write(&who, verb, what, outcome);
        }
    }

    /// Writes a line about a caller without a valid token.
    pub fn stranger(&self, from: &str, what: &str, outcome: &str) {
        let who = cut(from);
        let mut log = self.lock();
        let now = self.began.elapsed();
        if log.addresses.take(now, &who) && log.strangers.take(now, &()) {
            log.write(&who, "?", what, outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, AuditLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes how many audit lines were suppressed since the last call, one line per rate-limited
    /// caller.
    pub fn write_suppressed(&self) {
        let mut log = self.lock();
        // All unknown addresses share one summary line, because summary lines are not rate limited.
        let refused = log.addresses.take_refused().into_iter().map(|(_, count)| count);
        let strangers = log.strangers.take_refused().into_iter().map(|(_, count)| count);
        let strangers: u64 = refused.chain(strangers).sum();
        let callers = log.callers.take_refused();
        let strangers = Some((Some("without a valid token".to_owned()), strangers));
        for (who, count) in callers.into_iter().chain(strangers.filter(|(_, count)| *count > 0)) {
            let who = who.unwrap_or_else(|| "others".to_owned());
            log.write(&who, "?", "", &format!("{count} more suppressed"));
        }
    }
}

impl AuditLog {
    fn write(&mut self, who: &str, verb: &str, what: &str, outcome: &str) {
        let (what, outcome) = (cut(what), cut(outcome));
        let audit = unix_ms();
        let line = AuditLine { audit, who, verb, what: &what, outcome: &outcome };
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        // A full disk must not stop the agent, so a line that cannot be written to the file goes to
        // stderr.
        let is_written = self.file.as_mut().is_some_and(|file| file.write(text.as_bytes()).is_ok());
        if !is_written {
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}

impl AuditFile {
    fn open(path: &Path, bytes_max: u64) -> Result<Self, UntrustedError> {
        let (folder, name) = place(path)?;
        let file = folder.append(&name)?;
        let bytes = folder.size(&name);
        Ok(Self { folder, name, file, bytes, bytes_max })
    }

    fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.bytes + line.len() as u64 > self.bytes_max && self.bytes > 0 {
            let mut before = self.name.clone().into_os_string();
            before.push(".1");
            self.folder.rename(&self.name, &self.folder, &before)?;
            self.file = self.folder.append(&self.name)?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// Splits a path into its folder and the file's name.
fn place(path: &Path) -> Result<(OwnFolder, PathBuf), UntrustedError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = OwnFolder::hold(path.parent().unwrap_or(Path::new("/")))?;
    folder.refuse_exchange()?;
    Ok((folder, PathBuf::from(path.file_name().unwrap_or_default())))
}

/// Opens a file of the agent for appending. The file must belong to the agent's user, and symbolic
/// links are not followed.
///
/// # Errors
/// If the folder of the file is missing, or the file does not belong to the agent's user.
pub fn append(path: &Path) -> Result<File, UntrustedError> {
    let (folder, name) = place(path)?;
    folder.append(name)
}

/// Removes control characters from a field and truncates it to [`FIELD_MAX`] bytes.
fn cut(text: &str) -> String {
    let mut end = FIELD_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let more = if end < text.len() { "…" } else { "" };
    format!("{}{more}", without_controls(&text[..end]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Audit;

    fn lines(path: &std::path::Path) -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    #[test]
    fn unknown_callers_cannot_flood_the_audit_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        let audit = Audit::open(Some(&path), 1 << 20).unwrap();
        let long = "x\u{1b}[2J".repeat(100_000);
        for at in 0..10_000 {
            audit.stranger(&format!("10.0.{}.{}", at / 250, at % 250), &long, "refused");
        }
        for _ in 0..1000 {
            audit.line("ops", "trace", "a", "done");
        }
        audit.write_suppressed();
        let lines = lines(&path);
        assert!(lines.iter().all(|line| line.len() < 2048 && !line.contains('\u{1b}')));
        let count_lines = |who: &str| lines.iter().filter(|line| line.contains(who)).count();
        // The rate limit allows a few lines more per second, so slow test runs write a few more
        // than 64.
        assert!(
            (64..100).contains(&count_lines("\"what\":\"x")),
            "{}",
            count_lines("\"what\":\"x")
        );
        assert!((64..100).contains(&count_lines("ops")), "{}", count_lines("ops"));
        assert!(lines.iter().any(|line| line.contains("more suppressed")));
    }

    #[test]
    fn the_file_is_replaced_before_it_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        for round in 0..20 {
            // The size limit must also hold when the agent is restarted and reopens the log.
            let audit = Audit::open(Some(&path), 4096).unwrap();
            for at in 0..50 {
                audit.line(&format!("user {at}"), "trace", "a", &format!("round {round}"));
            }
        }
        let before = folder.path().join("audit.json.1");
        let sizes = [&path, &before].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|&size| size <= 2048), "{sizes:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(lines(&path).last().unwrap().contains("round 19"));
    }

    #[test]
    fn a_planted_link_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("audit.json"), folder.path().join("victim"));
        fs::write(&victim, "x").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(Audit::open(Some(&path), 4096).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(Audit::open(Some(&path), 4096).is_err());
    }
}
