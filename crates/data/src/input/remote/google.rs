//! Access tokens for Google Cloud Storage: of a service account's key, of a user who has signed in
//! with `gcloud auth application-default login`, or of the machine.
//!
//! # Source
//! "Using OAuth 2.0 for Server to Server Applications" and "How Application Default Credentials
//! works", Google.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};

use super::address::escaped;
use super::problem::RemoteProblem;
use super::wire::{Env, Wire};

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const TOKENS: &str = "https://oauth2.googleapis.com/token";
/// Tokens are renewed so many seconds before they end.
const EARLY: u64 = 300;

/// An access token.
#[derive(Clone)]
pub(super) struct AccessToken {
    pub text: String,
    expires: u64,
    /// Where it was found, for errors.
    pub origin: &'static str,
}

impl AccessToken {
    pub(super) fn is_valid(&self, now: u64) -> bool {
        now + EARLY < self.expires
    }
}

/// The URL of an object.
pub(super) fn url(env: &Env, (bucket, key): (&str, &str)) -> String {
    let own = env.get("STORAGE_EMULATOR_HOST").map(|host| match host.contains("://") {
        true => host,
        false => format!("http://{host}"),
    });
    let host = own.unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
    format!("{}/{}/{}", host.trim_end_matches('/'), escaped(bucket), escaped(key))
}

/// The first token that is found; `None` where nothing is configured.
pub(super) fn token(
    env: &Env,
    wire: &Wire,
    now: u64,
) -> Result<Option<AccessToken>, RemoteProblem> {
    let named = env.get("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from);
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    let usual = home.join(".config/gcloud/application_default_credentials.json");
    let path = named.clone().unwrap_or(usual);
    let refused =
        |reason: String| RemoteProblem::Credentials(format!("{}: {reason}", path.display()));
    match std::fs::read(&path) {
        Ok(text) => {
            let key: Value =
                serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
            of_file(&key, wire, now).map(Some).map_err(refused)
        }
        Err(error) if named.is_some() => Err(refused(error.to_string())),
        Err(_) => Ok(of_machine(env, wire, now)),
    }
}

fn of_file(key: &Value, wire: &Wire, now: u64) -> Result<AccessToken, String> {
    let field = |name: &str| {
        let text = key.get(name).and_then(Value::as_str);
        text.ok_or_else(|| format!("no {name:?}"))
    };
    let service = field("token_uri").unwrap_or(TOKENS);
    let answer = match field("type")? {
        "service_account" => {
            let claims = json!({
                "iss": field("client_email")?, "scope": SCOPE, "aud": service,
                "iat": now, "exp": now + 3600,
            });
            let signed = signed(&claims, field("private_key")?)?;
            let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
            wire.post(service, &[("grant_type", grant), ("assertion", &signed)])
        }
        "authorized_user" => wire.post(
            service,
            &[
                ("grant_type", "refresh_token"),
                ("client_id", field("client_id")?),
                ("client_secret", field("client_secret")?),
                ("refresh_token", field("refresh_token")?),
            ],
        ),
        other => return Err(format!("expected service_account or authorized_user, got {other:?}")),
    };
    let answer = answer.map_err(|problem| problem.to_string())?;
    of_answer(&answer, now, "a credentials file")
        .ok_or_else(|| format!("no access token from {service}"))
}

/// The token of the machine; `None` where no such service answers at once.
fn of_machine(env: &Env, wire: &Wire, now: u64) -> Option<AccessToken> {
    let host =
        env.get("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".to_owned());
    let url = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
    let answer = wire.get(&url, &[("metadata-flavor", "Google".to_owned())]).ok()?;
    of_answer(&answer, now, "the machine's account")
}

fn of_answer(text: &str, now: u64, origin: &'static str) -> Option<AccessToken> {
    let answer: Value = serde_json::from_str(text).ok()?;
    let text = answer.get("access_token")?.as_str()?.to_owned();
    let lasts = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(3600);
    Some(AccessToken { text, expires: now + lasts, origin })
}

/// `claims` as a JSON web token with an RSA signature.
fn signed(claims: &Value, pem: &str) -> Result<String, String> {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({ "alg": "RS256", "typ": "JWT" })), part(claims));
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = STANDARD.decode(body).map_err(|error| format!("private_key: {error}"))?;
    let key = RsaKeyPair::from_pkcs8(&key).map_err(|error| format!("private_key: {error}"))?;
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|error| format!("private_key: {error}"))?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
