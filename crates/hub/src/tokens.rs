//! Tokens of callers. Only their hashes are stored, so that a copy of the file admits nobody.

use std::collections::BTreeMap;
use std::path::Path;

use fleet::untrusted::{Privacy, read_trusted};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::pattern::matches_pattern;

/// Number of random bytes of a token. A hash without salt is safe only because tokens are random.
const TOKEN_BYTES: usize = 24;

/// What a caller may do. Each role of people includes the roles before it, except that nobody but
/// an agent sends rows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// Sends the rows of the host after which the token is named.
    Agent,
    /// Reads sums and pages.
    Viewer,
    /// Orders traces of the runs of the user after whom the token is named.
    Tracer,
    /// Orders traces of all runs.
    Admin,
}

impl TokenRole {
    pub const ALL: [Self; 4] = [Self::Agent, Self::Viewer, Self::Tracer, Self::Admin];

    /// Returns the name of the role in the file of tokens.
    pub fn name(self) -> &'static str {
        ["agent", "viewer", "tracer", "admin"][self as usize]
    }

    /// Whether a caller with this role may do what needs the role `needed`.
    pub fn includes(self, needed: Self) -> bool {
        self == needed || needed != Self::Agent && self > needed
    }
}

/// The role of a token, and its name. An agent's token is named after its host, and other tokens
/// after their user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    pub role: TokenRole,
    name: String,
}

impl TokenGrant {
    /// Creates a grant for a host, or for several hosts if the name ends with `*`.
    pub fn new(role: TokenRole, name: &str) -> Self {
        Self { role, name: name.to_owned() }
    }

    /// Name of the token: a host, a user, or a pattern of them.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the token may send messages of a host.
    ///
    /// # Errors
    /// The reason if the token is named after another host.
    pub fn check_host(&self, host: &str) -> Result<(), String> {
        if matches_pattern(&self.name, host) {
            return Ok(());
        }
        let name = &self.name;
        Err(format!("expected rows of the token's host {name:?}, got rows of {host:?}"))
    }
}

/// The hashes of all tokens, with what each permits.
#[derive(Debug, Default)]
pub struct TokenFile {
    grants: BTreeMap<String, TokenGrant>,
}

impl TokenFile {
    /// Reads a file with one token per line: its role, its name, and its hash.
    ///
    /// # Errors
    /// If other users may write the file, if a line is malformed, or if it has no token.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_trusted(path, Privacy::Readable)
            .map_err(|source| Error::File { key: "tokens", source })?;
        let file = Self::parse(&String::from_utf8_lossy(&bytes))?;
        if file.grants.is_empty() {
            let (what, got) = (format!("tokens: {}", path.display()), "none".to_owned());
            return Err(Error::Value { what, expected: "at least one token", got });
        }
        Ok(file)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut grants = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // The line is not shown, because a user may have pasted the token itself.
            let wrong = |got: String| Error::Value {
                what: format!("tokens: line {}", at + 1),
                expected: "a role (agent, viewer, tracer, admin), a name and a SHA-256 in hexadecimal digits",
                got,
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [role, name, hash] = words[..] else {
                return Err(wrong(format!("{} words", words.len())));
            };
            let Some(role) = TokenRole::ALL.into_iter().find(|known| known.name() == role) else {
                return Err(wrong("another role".to_owned()));
            };
            if hash.len() != 64 || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong(format!("a hash of {} letters", hash.len())));
            }
            grants.insert(hash.to_ascii_lowercase(), TokenGrant::new(role, name));
        }
        Ok(Self { grants })
    }

    /// Number of the tokens that the file has.
    pub fn count(&self) -> usize {
        self.grants.len()
    }

    /// Returns what a token permits, or `None` if the token is unknown.
    pub fn grant(&self, token: &str) -> Option<&TokenGrant> {
        // Comparing hashes instead of tokens leaks nothing about a token by its time.
        self.grants.get(&hash(token))
    }

    /// Returns the role of a token, or `None` if the token is unknown.
    pub fn role(&self, token: &str) -> Option<TokenRole> {
        self.grant(token).map(|grant| grant.role)
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
    use super::{TokenFile, TokenGrant, TokenRole, create_token};

    #[test]
    fn a_token_is_found_by_its_hash_only() {
        let (token, line) = create_token(TokenRole::Agent, "gpu-1").unwrap();
        let file = TokenFile::parse(&format!("# hosts\n\n{line}\n")).unwrap();
        assert_eq!(file.role(&token), Some(TokenRole::Agent));
        assert_eq!(file.role(&token[1..]), None);
        assert!(!line.contains(&token));
    }

    #[test]
    fn roles_of_people_include_lesser_ones_but_not_agents() {
        let of_each = TokenRole::ALL.map(|role| TokenRole::ALL.map(|needed| role.includes(needed)));
        let expected = [
            [true, false, false, false],
            [false, true, false, false],
            [false, true, true, false],
            [false, true, true, true],
        ];
        assert_eq!(of_each, expected);
    }

    #[test]
    fn a_token_of_an_agent_is_bound_to_the_hosts_of_its_name() {
        let check =
            |name: &str, host: &str| TokenGrant::new(TokenRole::Agent, name).check_host(host);
        assert_eq!(check("gpu-1", "gpu-1"), Ok(()));
        assert_eq!([check("gpu-*", "gpu-12"), check("*", "x")], [Ok(()), Ok(())]);
        let reason = check("gpu-1", "gpu-12").unwrap_err();
        assert_eq!(reason, "expected rows of the token's host \"gpu-1\", got rows of \"gpu-12\"");
    }

    #[test]
    fn malformed_lines_are_named_but_not_shown() {
        for line in ["agent secret", "root a 00", "agent a secret"] {
            let error = TokenFile::parse(line).unwrap_err().to_string();
            assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        }
    }
}
