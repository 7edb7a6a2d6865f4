//! The connection to the hub, which carries protobuf messages over HTTPS with a token. Failures are
//! reported as texts.

use std::fmt;
use std::time::Duration;

use fleet::proto::{CONTENT_TYPE, SIZE_MAX};
use fleet::untrusted::{Privacy, read_trusted};
use prost::Message;
use serde::Deserialize;
use ureq::tls::TlsConfig;

use crate::config::{ConfigError, HubConfig};
use crate::secret::read_secret;

/// Timeout of a request to the hub. A long poll adds its own duration to it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest number of bytes of an error response that are kept for the message.
const REFUSAL_MAX: u64 = 4096;

/// An HTTPS connection to the hub, with the CA certificate and the token of this host.
pub struct HubLink {
    agent: ureq::Agent,
    url: String,
    token: String,
}

/// The reason why a message was not delivered to the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// The hub will never accept this message, so it can be dropped.
    Refused(String),
    /// A proxy on the way refuses the message as too large or malformed. Retrying later or in
    /// smaller parts may work.
    Blocked(String),
    /// The hub is unreachable, busy, or rejects the token. Retrying later may work.
    Away(String),
}

impl fmt::Debug for HubLink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is left out because it must not appear in logs.
        write!(out, "Link({})", self.url)
    }
}

/// Reads the token for the hub from the file that the configuration names.
pub fn token(config: &HubConfig) -> Result<Vec<u8>, ConfigError> {
    read_secret(&config.token_file).map_err(ConfigError::at_key("hub: token_file"))
}

/// Builds the TLS configuration, with the configured CA certificate if there is one.
pub fn tls(config: &HubConfig) -> Result<TlsConfig, ConfigError> {
    let Some(path) = &config.ca else { return Ok(TlsConfig::default()) };
    let wrong = ConfigError::at_key::<ConfigError>("hub: ca");
    let bytes = match read_trusted(path, Privacy::Readable).map_err(ConfigError::file) {
        Ok(bytes) => bytes,
        Err(error) => return Err(wrong(error)),
    };
    fleet::trust::trust_only(&bytes).ok_or_else(|| {
        let problem = "expected a certificate in PEM, got none".to_owned();
        wrong(ConfigError::Tls { path: path.clone(), problem })
    })
}

/// The answer of a hub that refuses a message.
#[derive(Deserialize)]
struct HubRefusal {
    error: String,
}

impl HubLink {
    /// Reads the token and the CA certificate, and prepares the HTTPS client.
    ///
    /// # Errors
    /// If a file cannot be read, is accessible to other users, or is empty.
    pub fn new(config: &HubConfig) -> Result<Self, ConfigError> {
        let (token, tls) = (token(config)?, tls(config)?);
        let agent = ureq::Agent::config_builder()
            .https_only(config.url.starts_with("https://"))
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .tls_config(tls)
            .build()
            .new_agent();
        let url = config.url.trim_end_matches('/').to_owned();
        Ok(Self { agent, url, token: String::from_utf8_lossy(&token).into_owned() })
    }

    /// The base URL of the hub, to which the paths of requests are appended.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts a message to the hub and waits for the answer. The hub may delay the answer by up to
    /// `held`, as in a long poll.
    ///
    /// # Errors
    /// If the hub refuses the message or is unreachable.
    pub fn post<M: Message, A: Message + Default>(
        &self,
        path: &str,
        message: &M,
        held: Duration,
    ) -> Result<A, SendFailure> {
        let away = |error: ureq::Error| SendFailure::Away(error.to_string());
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token));
        let request = request.config().timeout_global(Some(PATIENCE + held)).build();
        let bytes = message.encode_to_vec();
        let mut answer = request.content_type(CONTENT_TYPE).send(&bytes).map_err(away)?;
        let status = answer.status().as_u16();
        if status == 200 {
            let body = answer.body_mut().with_config().limit(SIZE_MAX as u64);
            let bytes = body.read_to_vec().map_err(away)?;
            let wrong = |error| SendFailure::Away(format!("unexpected answer: {error}"));
            return A::decode(bytes.as_slice()).map_err(wrong);
        }
        let reason = answer.body_mut().with_config().limit(REFUSAL_MAX).read_to_string();
        let reason = reason.unwrap_or_default();
        // Hubs answer with JSON, and proxies with any text.
        let parsed = serde_json::from_str::<HubRefusal>(&reason);
        let reason = parsed.map_or(reason, |refusal| refusal.error);
        let reason: String = reason.chars().filter(|letter| !letter.is_control()).collect();
        let words = format!("status {status} {reason}").trim_end().to_owned();
        Err(match status {
            422 => SendFailure::Refused(words),
            // Proxies also send these two codes, so they do not prove that the hub refused the row.
            400 | 413 => SendFailure::Blocked(words),
            _ => SendFailure::Away(words),
        })
    }
}
