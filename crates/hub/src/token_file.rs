//! Keeps the tokens of callers equal to their file while the hub runs, so that a new host needs no
//! restart and a removed token admits nobody. [`crate::tokens`] reads the file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use crate::error::Error;
use crate::log::say;
use crate::tokens::{TokenFile, TokenGrant};

/// Interval at which the file is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The tokens in force. They are those of the last whole and correct file: a damaged file changes
/// nothing, because it could otherwise lock out all callers.
#[derive(Debug)]
pub struct FollowedTokens {
    path: PathBuf,
    current: RwLock<TokenFile>,
    /// What was last read, and the problem with it. The lock also prevents two readings at once.
    last: Mutex<LastReading>,
    /// Whether the file has a problem since its last change.
    is_stale: AtomicBool,
}

/// The last reading of the file.
#[derive(Debug, Default)]
struct LastReading {
    version: FileVersion,
    problem: Option<String>,
}

/// Properties of a file, one of which changes with its content. `None` stands for a missing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileVersion(Option<(u64, u64, i128)>);

impl FileVersion {
    fn read(path: &Path) -> Self {
        let version = fs::metadata(path).map(|data| {
            let changed_ns =
                i128::from(data.ctime()) * 1_000_000_000 + i128::from(data.ctime_nsec());
            (data.ino(), data.size(), changed_ns)
        });
        Self(version.ok())
    }
}

impl FollowedTokens {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// If the file cannot be used or has no token.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let version = FileVersion::read(path);
        let mut tokens = Self::with_tokens(TokenFile::read(path)?);
        path.clone_into(&mut tokens.path);
        tokens.last = Mutex::new(LastReading { version, problem: None });
        Ok(tokens)
    }

    /// Creates tokens that no file changes.
    pub fn with_tokens(tokens: TokenFile) -> Self {
        Self {
            path: PathBuf::new(),
            current: RwLock::new(tokens),
            last: Mutex::default(),
            is_stale: AtomicBool::new(false),
        }
    }

    /// Returns what a token permits, or `None` if the token is unknown.
    pub fn grant(&self, token: &str) -> Option<TokenGrant> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).grant(token).cloned()
    }

    /// Whether the file has changed and cannot be used, so that older tokens are in force.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// Reads the file again, whether or not it has changed, and reports the result.
    pub fn read_again(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // The properties are older than the content, so a change in between is noticed later.
        last.version = FileVersion::read(&self.path);
        let problem = match TokenFile::read(&self.path) {
            Ok(tokens) => {
                let count = tokens.count();
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = tokens;
                say(&format!("tokens: read {count} from {}", self.path.display()));
                None
            }
            Err(error) => {
                let text = format!("error: {error}; the tokens read before stay in force");
                // A repeated attempt with the same result is not worth a line.
                if last.problem.as_ref() != Some(&text) {
                    say(&text);
                }
                Some(text)
            }
        };
        self.is_stale.store(problem.is_some(), Ordering::Relaxed);
        last.problem = problem;
    }

    /// Reads the file if it differs from what was last read. `seen` is its version one look
    /// earlier: a file that is still being written is left for the next look.
    fn read_if_changed(&self, seen: &mut FileVersion) {
        let version = FileVersion::read(&self.path);
        let is_settled = version == std::mem::replace(seen, version);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).version;
        if is_settled && version != last {
            self.read_again();
        }
    }
}

/// Starts the thread that looks for changes of the file, which ends when `stop` is set.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn follow(tokens: Arc<FollowedTokens>, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("tokens".to_owned()).spawn(move || {
        let mut seen = FileVersion::read(&tokens.path);
        while !stop.load(Ordering::SeqCst) {
            thread::sleep(TICK);
            tokens.read_if_changed(&mut seen);
        }
    })
}

#[cfg(test)]
mod tests {
    use testkit::Folder;

    use super::{FileVersion, FollowedTokens};
    use crate::tokens::{TokenRole, create_token};

    #[test]
    fn changed_files_count_and_damaged_ones_keep_the_older_tokens() {
        let folder = Folder::new();
        let [(one, one_line), (two, two_line)] =
            ["gpu-1", "gpu-2"].map(|host| create_token(TokenRole::Agent, host).unwrap());
        let path = folder.write("tokens", &one_line);
        let tokens = FollowedTokens::open(&path).unwrap();
        let known = |tokens: &FollowedTokens| [&one, &two].map(|t| tokens.grant(t).is_some());
        let mut seen = FileVersion::read(&path);
        tokens.read_if_changed(&mut seen);
        assert_eq!(known(&tokens), [true, false]);

        folder.write("tokens", format!("{one_line}\n{two_line}"));
        tokens.read_if_changed(&mut seen);
        assert_eq!(known(&tokens), [true, false], "the file may still be written");
        tokens.read_if_changed(&mut seen);
        assert_eq!((known(&tokens), tokens.is_stale()), ([true, true], false));

        for damaged in ["agent gpu-3", "# all tokens were removed\n"] {
            folder.write("tokens", damaged);
            tokens.read_again();
            assert_eq!((known(&tokens), tokens.is_stale()), ([true, true], true), "{damaged}");
        }
        std::fs::remove_file(&path).unwrap();
        tokens.read_again();
        assert_eq!(known(&tokens), [true, true]);

        folder.write("tokens", &two_line);
        tokens.read_again();
        assert_eq!((known(&tokens), tokens.is_stale()), ([false, true], false));
    }
}
