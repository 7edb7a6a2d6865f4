//! Tokens of callers. Only their hashes are stored, so that a copy of the file admits nobody.

use std::collections::BTreeMap;
use std::path::Path;

use fleet::untrusted::{Privacy, read_trusted};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// Number of random bytes of a token. A hash without salt is safe only because tokens are random.
const TOKEN_BYTES: usize = 24;

/// What a token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenRole {
    /// Sends the rows of one host.
    Agent,
    /// Reads sums and pages.
    Viewer,
}

impl TokenRole {
    /// Returns the name of the role in the file of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Viewer => "viewer",
        }
    }
}

/// The hashes of all tokens, with the role of each.
#[derive(Debug, Default)]
pub struct TokenFile {
    roles: BTreeMap<String, TokenRole>,
}

impl TokenFile {
    /// Reads a file with one token per line: its role, its name, and its hash.
    ///
    /// # Errors
    /// If other users may write the file, or if a line is malformed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_trusted(path, Privacy::Readable)
            .map_err(|source| Error::File { key: "tokens", source })?;
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut roles = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // The line is not shown, because a user may have pasted the token itself.
            let wrong = |got: String| Error::Value {
                what: format!("tokens: line {}", at + 1),
                expected: "a role (agent, viewer), a name and a SHA-256 in hexadecimal digits",
                got,
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [role, _, hash] = words[..] else {
                return Err(wrong(format!("{} words", words.len())));
            };
            let known = [TokenRole::Agent, TokenRole::Viewer];
            let Some(role) = known.into_iter().find(|known| known.name() == role) else {
                return Err(wrong("another role".to_owned()));
            };
            if hash.len() != 64 || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong(format!("a hash of {} letters", hash.len())));
            }
            roles.insert(hash.to_ascii_lowercase(), role);
        }
        Ok(Self { roles })
    }

    /// Returns the role of a token, or `None` if the token is unknown.
    pub fn role(&self, token: &str) -> Option<TokenRole> {
        // Comparing hashes instead of tokens leaks nothing about a token by its time.
        self.roles.get(&hash(token)).copied()
    }

    /// Whether the file has no token, so that nobody could call.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }
}

/// Draws a random token. Returns the token and its line of the file.
///
/// # Errors
/// If the operating system has no random bytes.
pub fn create_token(role: TokenRole, name: &str) -> Result<(String, String), Error> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes)?;
    let token = hexadecimal(&bytes);
    let line = format!("{} {name} {}", role.name(), hash(&token));
    Ok((token, line))
}

fn hash(token: &str) -> String {
    hexadecimal(&Sha256::digest(token.as_bytes()))
}

/// Formats bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{TokenFile, TokenRole, create_token};

    #[test]
    fn a_token_is_found_by_its_hash_only() {
        let (token, line) = create_token(TokenRole::Agent, "gpu-1").unwrap();
        let file = TokenFile::parse(&format!("# hosts\n\n{line}\n")).unwrap();
        assert_eq!(file.role(&token), Some(TokenRole::Agent));
        assert_eq!(file.role(&token[1..]), None);
        assert!(!line.contains(&token));
    }

    #[test]
    fn malformed_lines_are_named_but_not_shown() {
        for line in ["agent secret", "root a 00", "agent a secret"] {
            let error = TokenFile::parse(line).unwrap_err().to_string();
            assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        }
    }
}
