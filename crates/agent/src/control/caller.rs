//! Authenticates callers of the agent by their tokens, and holds the permissions of each caller.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{CallerToken, Config, ConfigError, Verb};
use crate::net::Net;
use crate::secret::read_secret;
use crate::state::AgentState;
use crate::traces::Traces;
use crate::uids::Uids;

/// An authenticated caller with its permissions. The caller is a local user or the holder of a
/// token.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name of the caller in audit lines.
    pub name: String,
    pub verbs: Vec<Verb>,
    pub uids: Uids,
}

/// A token of the configuration together with its secret, which was read from a file.
#[derive(Clone)]
pub struct CallerSecret {
    token: CallerToken,
    secret: Vec<u8>,
    nets: Vec<Net>,
}

/// The agent's state and tokens, which every request handler receives.
#[derive(Clone)]
pub struct ServiceContext {
    pub state: Arc<AgentState>,
    pub traces: Arc<Traces>,
    /// Fields that the page `/metrics/dcgm` lists.
    pub fields: Arc<Vec<crate::page::dcgm::Field>>,
    /// Secrets of the tokens that callers from other hosts must send.
    pub secrets: Arc<Vec<CallerSecret>>,
    /// Secrets that allow reading the pages over plain HTTP. If the list is empty, everyone may
    /// read them.
    pub page_secrets: Arc<Vec<CallerSecret>>,
}

/// Reads the secret that scrapers must send. The list is empty if the configuration names no file.
///
/// # Errors
/// The errors of [`secret`].
pub fn page_secrets(config: &Config) -> Result<Vec<CallerSecret>, ConfigError> {
    let token = |file: &PathBuf| CallerToken {
        name: "metrics".to_owned(),
        file: file.clone(),
        verbs: vec![Verb::Status],
        users: Vec::new(),
        hosts: Vec::new(),
    };
    config.metrics_token_file.iter().map(|file| secret(&token(file))).collect()
}

/// Reads the secret of a token from the file that the configuration names.
///
/// # Errors
/// If the file cannot be read, is accessible to other users, or contains a secret that is too
/// short.
pub fn secret(token: &CallerToken) -> Result<CallerSecret, ConfigError> {
    let secret = read_secret(&token.file)?;
    let nets = token.hosts.iter().filter_map(|host| Net::parse(host)).collect();
    Ok(CallerSecret { token: token.clone(), secret, nets })
}

/// Finds two tokens with the same secret and returns the names of both.
pub fn equal_secrets(secrets: &[CallerSecret]) -> Option<(&str, &str)> {
    let later = |at: usize| secrets[..at].iter().find(|one| one.secret == secrets[at].secret);
    let equal =
        |at| later(at).map(|one| (one.token.name.as_str(), secrets[at].token.name.as_str()));
    (0..secrets.len()).find_map(equal)
}

/// Authenticates a caller by the secret in the `Authorization` header and by the address of the
/// caller.
pub fn authorize(secrets: &[CallerSecret], header: Option<&str>, from: IpAddr) -> Option<Caller> {
    let given = header?.strip_prefix("Bearer ")?.as_bytes();
    // All secrets are compared, so that the time of the answer does not reveal which one matched.
    let mut matching = None;
    for secret in secrets {
        let is_from = secret.nets.is_empty() || secret.nets.iter().any(|net| net.has(from));
        if is_equal(&secret.secret, given) && is_from {
            matching = Some(secret);
        }
    }
    let token = &matching?.token;
    let uids = if token.users.is_empty() { Uids::All } else { Uids::Only(token.users.clone()) };
    Some(Caller { name: format!("{}@{from}", token.name), verbs: token.verbs.clone(), uids })
}

/// Compares two byte strings. For strings of equal length, the time does not depend on their
/// content.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{CallerSecret, authorize};
    use crate::config::{CallerToken, Verb};
    use crate::net::Net;
    use crate::uids::Uids;

    fn secret(secret: &str, users: &[u32], nets: &[&str]) -> CallerSecret {
        let token = CallerToken {
            name: secret[..1].to_owned(),
            file: "f".into(),
            verbs: vec![Verb::Status],
            users: users.to_vec(),
            hosts: Vec::new(),
        };
        let nets = nets.iter().map(|net| Net::parse(net).unwrap()).collect();
        CallerSecret { token, secret: secret.as_bytes().to_vec(), nets }
    }

    #[test]
    fn a_token_is_valid_for_its_hosts_and_users_only() {
        let secrets = [
            secret("aaaaaaaaaaaaaaaa", &[], &[]),
            secret("bbbbbbbbbbbbbbbb", &[7], &["10.0.0.0/8"]),
        ];
        let from: IpAddr = "10.2.3.4".parse().unwrap();
        let call = |header: Option<&str>, from: IpAddr| authorize(&secrets, header, from);
        assert!(call(None, from).is_none() && call(Some("Bearer "), from).is_none());
        assert!(call(Some("aaaaaaaaaaaaaaaa"), from).is_none());
        assert!(call(Some("Bearer aaaaaaaaaaaaaaa"), from).is_none());
        assert_eq!(call(Some("Bearer aaaaaaaaaaaaaaaa"), from).unwrap().uids, Uids::All);
        let other = call(Some("Bearer bbbbbbbbbbbbbbbb"), from).unwrap();
        assert_eq!((other.name.as_str(), other.uids), ("b@10.2.3.4", Uids::Only(vec![7])));
        assert!(call(Some("Bearer bbbbbbbbbbbbbbbb"), "11.0.0.1".parse().unwrap()).is_none());
        assert!(
            call(Some("Bearer bbbbbbbbbbbbbbbb"), "::ffff:10.0.0.1".parse().unwrap()).is_some()
        );
    }
}
