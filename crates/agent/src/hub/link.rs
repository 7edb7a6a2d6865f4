//! The connection to the hub: protobuf over HTTPS with a token. Failures are texts.

use std::fmt;
use std::time::Duration;

use fleet::proto::{CONTENT_TYPE, SIZE_MAX};
use fleet::untrusted::{Privacy, read_trusted};
use prost::Message;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{ConfigError, HubConfig};
use crate::secret::read_secret;

/// A hub that takes longer counts as down; a long poll gets this on top of its own timeout.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes kept of a refusal.
const REFUSAL_MAX: u64 = 512;

/// The connection.
pub struct HubLink {
    agent: ureq::Agent,
    url: String,
    token: String,
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFailure {
    /// The hub says that it will never take it.
    Refused(String),
    /// Something on the way refuses it, because it is too large or looks wrong: in smaller parts or
    /// later, perhaps.
    Blocked(String),
    /// The hub is not there, or busy, or does not know the token: later, perhaps.
    Away(String),
}

impl fmt::Debug for HubLink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is nobody's affair.
        write!(out, "Link({})", self.url)
    }
}

/// Reads the token.
pub fn token(config: &HubConfig) -> Result<Vec<u8>, ConfigError> {
    read_secret(&config.token_file).map_err(ConfigError::at_key("hub: token_file"))
}

/// Reads the certificate, if one is named.
pub fn tls(config: &HubConfig) -> Result<TlsConfig, ConfigError> {
    let Some(path) = &config.ca else { return Ok(TlsConfig::default()) };
    let wrong = ConfigError::at_key::<ConfigError>("hub: ca");
    let bytes = match read_trusted(path, Privacy::Readable).map_err(ConfigError::file) {
        Ok(bytes) => bytes,
        Err(error) => return Err(wrong(error)),
    };
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<Certificate<'static>> = items.collect();
    if found.is_empty() {
        let problem = "expected a certificate in PEM, got none".to_owned();
        return Err(wrong(ConfigError::Tls { path: path.clone(), problem }));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&found)).build())
}

impl HubLink {
    /// Reads token and certificate.
    ///
    /// # Errors
    /// A file cannot be read, is open to others, or holds nothing.
    pub fn new(config: &HubConfig) -> Result<Self, ConfigError> {
        let (token, tls) = (token(config)?, tls(config)?);
        let agent = ureq::Agent::config_builder()
            .https_only(true)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .tls_config(tls)
            .build()
            .new_agent();
        let url = config.url.trim_end_matches('/').to_owned();
        Ok(Self { agent, url, token: String::from_utf8_lossy(&token).into_owned() })
    }

    /// Where the hub is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts a message, whose answer may be held back for `held`.
    ///
    /// # Errors
    /// The hub refuses it, or is away.
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
            let wrong = |error| SendFailure::Away(format!("another answer than expected: {error}"));
            return A::decode(bytes.as_slice()).map_err(wrong);
        }
        let said = answer.body_mut().with_config().limit(REFUSAL_MAX).read_to_string();
        let said = said.unwrap_or_default();
        let said: String = said.chars().filter(|letter| !letter.is_control()).collect();
        let words = format!("status {status} {said}").trim_end().to_owned();
        Err(match status {
            422 => SendFailure::Refused(words),
            // Proxies answer so, too: that must not cost a row.
            400 | 413 => SendFailure::Blocked(words),
            _ => SendFailure::Away(words),
        })
    }
}
