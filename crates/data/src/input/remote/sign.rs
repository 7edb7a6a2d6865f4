//! Signs a request without a body with AWS Signature Version 4.
//!
//! # Source
//! "Authenticating Requests: Using the Authorization Header", Amazon S3 API reference.

use chrono::DateTime;
use ring::{digest, hmac};

/// SHA-256 of an empty body, in hexadecimal digits.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Number of seconds before their expiry at which keys are renewed.
const EARLY: u64 = 300;

/// An AWS access key with its secret; temporary keys also have a session token and an expiry.
#[derive(Clone)]
pub(super) struct AccessKeys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
    /// Expiry in seconds since 1970; `None` for permanent keys.
    pub expires: Option<u64>,
    /// Source of the keys, for error messages.
    pub origin: &'static str,
}

impl AccessKeys {
    pub(super) fn is_valid(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now + EARLY < expires)
    }
}

/// The parts of a request that the signature covers besides its headers.
pub(super) struct SignedRequest<'a> {
    pub host: &'a str,
    /// Path of the URL, percent-encoded and starting with `/`.
    pub path: &'a str,
    pub region: &'a str,
    /// Time of the request, in seconds since 1970.
    pub now: u64,
}

/// Returns `headers` plus the headers that sign `request`. The signature covers `headers` too,
/// whose names must be lower case.
pub(super) fn sign_headers(
    request: &SignedRequest<'_>,
    keys: &AccessKeys,
    headers: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let now = DateTime::from_timestamp(request.now.cast_signed(), 0).unwrap_or_default();
    let time = now.format("%Y%m%dT%H%M%SZ").to_string();
    let mut signed = headers;
    signed.push(("host".to_owned(), request.host.to_owned()));
    signed.push(("x-amz-content-sha256".to_owned(), EMPTY.to_owned()));
    signed.push(("x-amz-date".to_owned(), time.clone()));
    signed.extend(keys.token.clone().map(|token| ("x-amz-security-token".to_owned(), token)));
    // Signature Version 4 requires the headers in the order of their names.
    signed.sort();
    let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let names: Vec<&str> = signed.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let canonical = format!("GET\n{}\n\n{lines}\n{names}\n{EMPTY}", request.path);
    let scope = format!("{}/{}/s3/aws4_request", &time[..8], request.region);
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
    // The signing key is derived from the secret by a chain of HMACs over the scope.
    let mut key = format!("AWS4{}", keys.secret).into_bytes();
    for part in scope.split('/') {
        key = hmac_sha256(&key, part.as_bytes());
    }
    let signature = hex(&hmac_sha256(&key, text.as_bytes()));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        keys.id
    );
    // The HTTP client adds the host header itself.
    signed.retain(|(name, _)| name != "host");
    signed.push(("authorization".to_owned(), authorization));
    signed
}

fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{AccessKeys, SignedRequest, sign_headers};

    /// Checks the signature of the example "GET Object" in Amazon's documentation.
    #[test]
    fn the_published_example_gives_the_published_signature() {
        let request = SignedRequest {
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            region: "us-east-1",
            now: 1_369_353_600,
        };
        let keys = AccessKeys {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
            expires: None,
            origin: "a test",
        };
        let range = vec![("range".to_owned(), "bytes=0-9".to_owned())];
        let signed = sign_headers(&request, &keys, range);
        let (name, value) = signed.last().unwrap();
        assert_eq!(name, "authorization");
        assert_eq!(
            value,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }
}
