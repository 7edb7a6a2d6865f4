//! Secrets in files that only their owner can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::ConfigError;

/// The shortest secret.
const SECRET_MIN: usize = 16;

/// A secret from a file that is its owner's alone.
///
/// # Errors
/// The file cannot be read, is open to others, or holds too short a secret.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let error = |source| ConfigError::Read { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(error)?.permissions().mode() & 0o777;
    let wrong = |expected: &str, got: String| ConfigError::Value {
        what: path.display().to_string(),
        expected: expected.to_owned(),
        got,
    };
    if mode & 0o077 != 0 {
        return Err(wrong("a file for its owner alone (mode 0600)", format!("mode {mode:04o}")));
    }
    let text = fs::read_to_string(path).map_err(error)?;
    let secret = text.trim().as_bytes().to_vec();
    if text.trim().lines().count() > 1 {
        return Err(wrong(
            "one line with a secret",
            format!("{} lines", text.trim().lines().count()),
        ));
    }
    if secret.len() < SECRET_MIN {
        return Err(wrong("a secret of at least 16 letters", secret.len().to_string()));
    }
    Ok(secret)
}
