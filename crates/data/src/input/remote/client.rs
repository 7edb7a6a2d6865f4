//! Sends requests to stores: adds credentials, follows a bucket to its region, and distinguishes
//! temporary failures from permanent ones.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::address::{BucketKey, Scheme, bucket_and_key};
use super::credential_http::{ANSWER, CredentialHttp, Env, between};
use super::problem::RemoteProblem;
use super::{aws, google, sign};

const CONNECT: Duration = Duration::from_secs(10);
/// Timeout for the start of a response, and for each read of its body.
const SILENCE: Duration = Duration::from_secs(60);
/// Pause before the first retry; it doubles with each further retry.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// URL and headers of a request after signing.
struct AddressedRequest {
    url: String,
    headers: Vec<(String, String)>,
    /// Description of the credentials, for error messages.
    with: String,
}

/// The client that the whole process shares, so that connections and credentials are reused.
static CLIENT: LazyLock<Client> = LazyLock::new(|| Client::new(Env::from_process()));

/// The HTTP client for stores, which caches credentials and the regions of buckets.
pub(super) struct Client {
    env: Env,
    agent: Result<Agent, RemoteProblem>,
    http: CredentialHttp,
    keys: Mutex<Option<Option<sign::AccessKeys>>>,
    token: Mutex<Option<Option<google::AccessToken>>>,
    /// Regions of buckets that turned out to be in another region than the configured one.
    regions: Mutex<BTreeMap<String, String>>,
}

/// One request for an object or a range of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectRequest<'a> {
    /// The URL as the user gave it.
    pub input: &'a str,
    /// Bytes `first..=last`; `None` for the whole object.
    pub range: Option<(u64, u64)>,
    /// The entity tag that the object must still have.
    pub same: Option<&'a str>,
}

/// Reasons why one attempt failed, which decide whether it is retried.
pub(super) enum TryFailure {
    /// A temporary failure, after which the request is worth a retry.
    Passing(String),
    Final(RemoteProblem),
}

impl Client {
    pub(super) fn shared() -> &'static Self {
        &CLIENT
    }

    pub(super) fn new(env: Env) -> Self {
        Self {
            agent: build_agent(&env),
            http: CredentialHttp::new(),
            keys: Mutex::default(),
            token: Mutex::default(),
            regions: Mutex::default(),
            env,
        }
    }

    /// Sends one request and returns the response. A response with status 412 (the object has
    /// changed) or 416 (the range is past its end) counts as success.
    pub(super) fn send(&self, request: ObjectRequest<'_>) -> Result<Response<Body>, TryFailure> {
        let agent = self.agent.as_ref().map_err(|problem| TryFailure::Final(problem.clone()))?;
        let mut headers = Vec::new();
        if let Some((first, last)) = request.range {
            headers.push(("range".to_owned(), format!("bytes={first}-{last}")));
        }
        if let Some(same) = request.same {
            headers.push(("if-match".to_owned(), same.to_owned()));
        }
        // Only one redirection is followed, so that two regions cannot refer to each other forever.
        let mut followed_region = false;
        loop {
            let AddressedRequest { url, headers, with } =
                self.address_request(request.input, headers.clone())?;
            let mut call = agent.get(&url);
            if Scheme::parse(request.input) != Some(Scheme::Http) {
                // A signature is valid for one host only, so redirections cannot be followed.
                call = call.config().max_redirects(0).build();
            }
            for (name, value) in headers {
                call = call.header(name, value);
            }
            let answer = call.call().map_err(|error| classify_error(&url, &error))?;
            let region = answer.headers().get("x-amz-bucket-region");
            if let Some(region) = region.and_then(|region| region.to_str().ok())
                // S3 answers a request for another region with one of these codes and names the
                // right region.
                && matches!(answer.status().as_u16(), 301 | 307 | 400 | 403)
                && !std::mem::replace(&mut followed_region, true)
                && let Ok(BucketKey { bucket, .. }) = bucket_and_key(request.input)
                && self.region(bucket) != region
            {
                lock(&self.regions).insert(bucket.to_owned(), region.to_owned());
                continue;
            }
            return check_status(answer, &with);
        }
    }

    fn address_request(
        &self,
        input: &str,
        mut headers: Vec<(String, String)>,
    ) -> Result<AddressedRequest, TryFailure> {
        let now = epoch_seconds();
        let anonymous = || "without credentials, as none were found".to_owned();
        match Scheme::parse(input) {
            Some(Scheme::S3) => {
                let place = bucket_and_key(input).map_err(TryFailure::Final)?;
                let region = self.region(place.bucket);
                let url = aws::object_url(&self.env, &region, place);
                let Some(keys) = self.keys(now).map_err(TryFailure::Final)? else {
                    return Ok(AddressedRequest { url, headers, with: anonymous() });
                };
                let (host, path) = host_and_path(&url);
                let request = sign::SignedRequest { host, path, region: &region, now };
                let headers = sign::sign_headers(&request, &keys, headers);
                let with = format!("with the key {} of {}", keys.id, keys.origin);
                Ok(AddressedRequest { url, headers, with })
            }
            Some(Scheme::Google) => {
                let place = bucket_and_key(input).map_err(TryFailure::Final)?;
                let url = google::object_url(&self.env, place);
                // Without this header, the store would decompress on the fly, and ranges would
                // refer to other bytes.
                headers.push(("accept-encoding".to_owned(), "gzip".to_owned()));
                let Some(token) = self.token(now).map_err(TryFailure::Final)? else {
                    return Ok(AddressedRequest { url, headers, with: anonymous() });
                };
                headers.push(("authorization".to_owned(), format!("Bearer {}", token.text)));
                let with = format!("with a token of {}", token.origin);
                Ok(AddressedRequest { url, headers, with })
            }
            _ => {
                let with = "without credentials".to_owned();
                Ok(AddressedRequest { url: input.to_owned(), headers, with })
            }
        }
    }

    fn region(&self, bucket: &str) -> String {
        let region = lock(&self.regions).get(bucket).cloned();
        region.unwrap_or_else(|| aws::find_region(&self.env))
    }

    fn keys(&self, now: u64) -> Result<Option<sign::AccessKeys>, RemoteProblem> {
        let mut cached = lock(&self.keys);
        match &*cached {
            Some(None) => return Ok(None),
            Some(Some(keys)) if keys.is_valid(now) => return Ok(Some(keys.clone())),
            _ => {}
        }
        let keys = aws::find_keys(&self.env, &self.http)?;
        *cached = Some(keys.clone());
        Ok(keys)
    }

    fn token(&self, now: u64) -> Result<Option<google::AccessToken>, RemoteProblem> {
        let mut cached = lock(&self.token);
        match &*cached {
            Some(None) => return Ok(None),
            Some(Some(token)) if token.is_valid(now) => return Ok(Some(token.clone())),
            _ => {}
        }
        let token = google::find_token(&self.env, &self.http, now)?;
        *cached = Some(token.clone());
        Ok(token)
    }

    /// Returns the host that serves `input`, for error messages.
    pub(super) fn host(&self, input: &str) -> String {
        let url = match (Scheme::parse(input), bucket_and_key(input)) {
            (Some(Scheme::S3), Ok(place)) => {
                aws::object_url(&self.env, &self.region(place.bucket), place)
            }
            (Some(Scheme::Google), Ok(place)) => google::object_url(&self.env, place),
            _ => input.to_owned(),
        };
        host_and_path(&url).0.to_owned()
    }
}

/// Calls `attempt` until it succeeds or fails permanently, or until `tries` attempts in a row
/// failed. `attempt` sets its flag when it has made progress, which resets the count.
pub(super) fn retry_request<T>(
    host: impl Fn() -> String,
    tries: u32,
    mut attempt: impl FnMut(&mut bool) -> Result<T, TryFailure>,
) -> Result<T, RemoteProblem> {
    let mut failed = 0;
    loop {
        let mut came_further = false;
        match attempt(&mut came_further) {
            Ok(done) => return Ok(done),
            Err(TryFailure::Final(problem)) => return Err(problem),
            Err(TryFailure::Passing(reason)) => {
                failed = if came_further { 1 } else { failed + 1 };
                if failed >= tries {
                    return Err(RemoteProblem::Unreachable { host: host(), tries, reason });
                }
                let pause = PAUSE * 2_u32.saturating_pow(failed - 1);
                std::thread::sleep(pause.min(LONGEST_PAUSE));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn epoch_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Splits a URL into its host with the port, and its path.
fn host_and_path(url: &str) -> (&str, &str) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or((rest, "/"), |at| rest.split_at(at))
}

fn build_agent(env: &Env) -> Result<Agent, RemoteProblem> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .user_agent(concat!("rowmill/", env!("CARGO_PKG_VERSION")));
    // These environment variables name a file of certificates, such as those of a private
    // authority, which replace the default ones.
    let own = ["AWS_CA_BUNDLE", "SSL_CERT_FILE"].into_iter().find_map(|name| env.get(name));
    if let Some(path) = own {
        let refused = |reason| RemoteProblem::Credentials(format!("{path}: {reason}"));
        let text = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
        let certificates = ureq::tls::parse_pem(&text).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = certificates.collect();
        if certificates.is_empty() {
            return Err(refused("no certificate in it".to_owned()));
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::from(certificates)).build();
        config = config.tls_config(tls);
    }
    Ok(config.build().into())
}

fn classify_error(url: &str, error: &ureq::Error) -> TryFailure {
    let reason = match error {
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    let is_final = matches!(
        error,
        ureq::Error::BadUri(_)
            | ureq::Error::Http(_)
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_)
            | ureq::Error::TooManyRedirects
            | ureq::Error::RedirectFailed
            | ureq::Error::InvalidProxyUrl
            | ureq::Error::HostNotFound
    );
    if is_final {
        let host = host_and_path(url).0.to_owned();
        return TryFailure::Final(RemoteProblem::Unreachable { host, tries: 1, reason });
    }
    TryFailure::Passing(reason)
}

fn check_status(answer: Response<Body>, with: &str) -> Result<Response<Body>, TryFailure> {
    let status = answer.status().as_u16();
    if matches!(status, 200 | 206 | 412 | 416) {
        return Ok(answer);
    }
    // With these statuses, the same request may succeed later.
    let passing = matches!(status, 408 | 429 | 500 | 502 | 503 | 504);
    let detail = error_detail(answer);
    if passing {
        return Err(TryFailure::Passing(format!("HTTP status {status}{detail}")));
    }
    Err(TryFailure::Final(match status {
        404 | 410 => RemoteProblem::NotFound { status, detail },
        401 | 403 => RemoteProblem::Denied { status, detail, credentials: with.to_owned() },
        _ => RemoteProblem::Status { status, detail },
    }))
}

/// Extracts the store's error code and message from the XML of a response.
fn error_detail(answer: Response<Body>) -> String {
    let mut text = Vec::new();
    // An unreadable response has no detail to show.
    let _ = answer.into_body().into_reader().take(ANSWER).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| between(&text, &format!("<{name}>"), &format!("</{name}>"));
    match (field("Code"), field("Message")) {
        (Some(code), Some(message)) => format!(", {code}: {}", message.trim_end_matches('.')),
        (Some(code), None) => format!(", {code}"),
        _ => String::new(),
    }
}
