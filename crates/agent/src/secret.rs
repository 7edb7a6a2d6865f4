//! Reads secrets from files that only their owner can access.

use std::path::Path;

use fleet::untrusted::{Privacy, read_trusted};

use crate::config::ConfigError;

/// Smallest length of a secret in bytes.
const SECRET_MIN: usize = 16;

/// Reads a secret from a file that only the file's owner can access.
///
/// # Errors
/// If the file cannot be read, is accessible to other users, or contains a secret that is too
/// short.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let bytes = read_trusted(path, Privacy::Secret).map_err(ConfigError::file)?;
    let secret = bytes.trim_ascii().to_vec();
    let wrong = |expected: String, got: String| ConfigError::Value {
        what: path.display().to_string(),
        expected,
        got,
    };
    let lines = secret.split(|byte| *byte == b'\n').count();
    if lines > 1 {
        return Err(wrong("one line with a secret".to_owned(), format!("{lines} lines")));
    }
    if secret.len() < SECRET_MIN {
        let expected = format!("a secret of at least {SECRET_MIN} letters");
        return Err(wrong(expected, secret.len().to_string()));
    }
    Ok(secret)
}
