//! URLs and access tokens for Google Cloud Storage. Tokens come from the key of a service account,
//! from a user who has run `gcloud auth application-default login`, or from the machine's account.
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

use super::address::{BucketKey, percent_encode};
use super::credential_http::{CredentialHttp, Env};
use super::problem::RemoteProblem;

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const TOKENS: &str = "https://oauth2.googleapis.com/token";
/// Number of seconds before their expiry at which tokens are renewed.
const EARLY: u64 = 300;

/// A bearer token with its expiry, reused for all requests until it expires.
#[derive(Clone)]
pub(super) struct AccessToken {
    pub text: String,
    expires: u64,
    /// Source of the token, for error messages.
    pub origin: &'static str,
}

impl AccessToken {
    pub(super) fn is_valid(&self, now: u64) -> bool {
        now + EARLY < self.expires
    }
}

/// Builds the URL of an object in Google Cloud Storage or in its emulator.
pub(super) fn object_url(env: &Env, BucketKey { bucket, key }: BucketKey<'_>) -> String {
    let own = env.get("STORAGE_EMULATOR_HOST").map(|host| match host.contains("://") {
        true => host,
        false => format!("http://{host}"),
    });
    let host = own.unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
    format!("{}/{}/{}", host.trim_end_matches('/'), percent_encode(bucket), percent_encode(key))
}

/// Returns a token of the first source that is configured, or `None` if no source is configured.
pub(super) fn find_token(
    env: &Env,
    http: &CredentialHttp,
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
            token_from_file(&key, http, now).map(Some).map_err(refused)
        }
        Err(error) if named.is_some() => Err(refused(error.to_string())),
        Err(_) => Ok(token_from_machine(env, http, now)),
    }
}

fn token_from_file(key: &Value, http: &CredentialHttp, now: u64) -> Result<AccessToken, String> {
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
            // A service account exchanges claims that it has signed for a token (RFC 7523).
            let signed = sign_claims(&claims, field("private_key")?)?;
            let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
            http.post(service, &[("grant_type", grant), ("assertion", &signed)])
        }
        "authorized_user" => http.post(
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
    parse_token(&answer, now, "a credentials file")
        .ok_or_else(|| format!("no access token from {service}"))
}

/// Requests a token of the machine's account. Returns `None` if the metadata service does not
/// answer at once.
fn token_from_machine(env: &Env, http: &CredentialHttp, now: u64) -> Option<AccessToken> {
    let host =
        env.get("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".to_owned());
    let url = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
    let answer = http.get(&url, &[("metadata-flavor", "Google".to_owned())]).ok()?;
    parse_token(&answer, now, "the machine's account")
}

fn parse_token(text: &str, now: u64, origin: &'static str) -> Option<AccessToken> {
    let answer: Value = serde_json::from_str(text).ok()?;
    let text = answer.get("access_token")?.as_str()?.to_owned();
    let lasts = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(3600);
    Some(AccessToken { text, expires: now + lasts, origin })
}

/// Signs `claims` as a JSON web token with RSA.
fn sign_claims(claims: &Value, pem: &str) -> Result<String, String> {
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
