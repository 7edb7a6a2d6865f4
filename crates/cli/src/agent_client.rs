//! One agent, asked over TLS with a token, or over its own socket on this host. Failures are texts:
//! the ranks of a silent host are lost, and the others continue.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet::ipc::control;
use fleet::ipc::socket::SocketPlace;
use fleet::wire::{
    OrderRefusal, Pause, ROOT, SampleOrder, Samples, Status, TraceFile, TraceOrder, TraceState,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::file::create_anew;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use xxhash_rust::xxh3::Xxh3;

use crate::args::Reach;
use setup::error::{Error, UsageError};
use setup::interrupt;

/// Problems that [`hint`] recognizes.
const NO_AGENT: &str = "no agent answers on this host";
const UNKNOWN_AUTHORITY: &str =
    "expected one of a known authority, got one of an unknown authority";
const OTHER_NAME: &str = "expected one for this host name, got one for another name";
const NO_TLS: &str = "expected TLS, got another protocol";
const REFUSED: &str = "Connection refused";
/// Default port of agents.
const PORT: u16 = 9466;
/// Answers are no larger; traces come in parts of 4 MiB.
const ANSWER_MAX: u64 = 16 << 20;
/// Headers of an answer.
const HEADERS_MAX: usize = 32;
/// Looks at a clock: the quickest counts.
const CLOCK_LOOKS: usize = 5;
/// How often a part of a trace is tried again.
const TRIES: u32 = 5;

/// A connection to the agent of one host, over its socket or over HTTPS.
pub struct Client {
    name: String,
    door: Door,
    patience: Duration,
}

/// The connection to an agent: the local socket, or HTTPS with a token for remote hosts.
enum Door {
    Unix(SocketPlace),
    Tls { url: String, token: String, agent: ureq::Agent },
}

/// A host's clock minus ours.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostClock {
    pub offset_ns: i64,
    /// How far it may be off: half of the quickest answer.
    pub uncertainty_ns: u64,
}

impl HostClock {
    /// The offset and its error in milliseconds, for people.
    pub fn words(self) -> String {
        let ms = |ns: f64| ns * 1e-6;
        format!("{:+.1} ms ± {:.1}", ms(self.offset_ns as f64), ms(self.uncertainty_ns as f64))
    }
}

/// Agents on other hosts.
pub fn remote(
    hosts: BTreeSet<String>,
    reach: &Reach,
    patience: Duration,
) -> Result<Vec<Client>, Error> {
    let Some(path) = &reach.token_file else { return Err(UsageError::NoToken.into()) };
    let token = fs::read_to_string(path).map_err(Error::io(path, "read"))?.trim().to_owned();
    if token.is_empty() {
        return Err(UsageError::EmptyToken { path: path.clone() }.into());
    }
    let tls = match &reach.ca {
        Some(path) => {
            let certificates = certificates(path)?;
            TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build()
        }
        None => TlsConfig::default(),
    };
    let agent = ureq::Agent::config_builder()
        .https_only(true)
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(patience))
        .tls_config(tls)
        .build()
        .new_agent();
    let client = |name: String| {
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let url =
            if has_port { format!("https://{name}") } else { format!("https://{name}:{PORT}") };
        Client {
            name,
            door: Door::Tls { url, token: token.clone(), agent: agent.clone() },
            patience,
        }
    };
    Ok(hosts.into_iter().map(client).collect())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<Certificate<'static>> = items.collect();
    if found.is_empty() {
        return Err(UsageError::NoCertificate { path: path.to_owned() }.into());
    }
    Ok(found)
}

impl Client {
    /// The agent of this host.
    pub fn local(place: SocketPlace, patience: Duration) -> Self {
        Self { name: "this host".to_owned(), door: Door::Unix(place), patience }
    }

    /// Whether it is the agent of this host.
    pub fn is_local(&self) -> bool {
        matches!(self.door, Door::Unix(_))
    }

    /// The host as the user named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether anyone answers at the socket of this host.
    pub fn is_there(&self) -> bool {
        match &self.door {
            Door::Unix(place) => control::connect(place).is_ok(),
            Door::Tls { .. } => true,
        }
    }

    /// What the agent knows, and its clock.
    pub fn status(&self) -> Result<(Status, HostClock), String> {
        let mut best: Option<(Status, HostClock)> = None;
        for _ in 0..CLOCK_LOOKS {
            let before = unix_ns();
            let status: Status = self.json("GET", &format!("{ROOT}/status"), None)?;
            let after = unix_ns();
            let middle = before + (after - before) / 2;
            let clock = HostClock {
                offset_ns: i64::try_from(status.unix_ns).unwrap_or(i64::MAX) - middle,
                uncertainty_ns: u64::try_from((after - before) / 2).unwrap_or(0),
            };
            if best.as_ref().is_none_or(|(_, known)| clock.uncertainty_ns < known.uncertainty_ns) {
                best = Some((status, clock));
            }
        }
        best.ok_or_else(|| "no answer".to_owned())
    }

    /// Orders traces and returns the state of the order.
    pub fn begin(&self, order: &TraceOrder) -> Result<TraceState, String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.json("POST", &format!("{ROOT}/traces"), Some(&body))
    }

    /// State of an order, or `None` if the agent does not know the order.
    pub fn state(&self, token: &str) -> Result<Option<TraceState>, String> {
        match self.request("GET", &format!("{ROOT}/traces/{token}"), None)? {
            (404, _) => Ok(None),
            (status, bytes) => parse(&accepted(status, bytes)?).map(Some),
        }
    }

    /// Lets the agent forget an order.
    pub fn forget(&self, token: &str) {
        // It forgets by itself after an hour.
        let _ = self.ask("DELETE", &format!("{ROOT}/traces/{token}"), None);
    }

    /// Leaves counters to others.
    pub fn pause(&self, order: &Pause) -> Result<(), String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.ask("POST", &format!("{ROOT}/pause"), Some(&body)).map(drop)
    }

    /// Looks at processes; answers when it is over.
    pub fn sample(&self, order: &SampleOrder) -> Result<Samples, String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.json("POST", &format!("{ROOT}/samples"), Some(&body))
    }

    /// Fetches a trace to a file that appears when it is whole and its checksum is right. A failed
    /// part is requested again from the end of the file.
    pub fn fetch(&self, token: &str, file: &TraceFile, to: &Path) -> Result<(), String> {
        let partial = Partial::new(to);
        let io = |error: std::io::Error| format!("{}: {error}", to.display());
        let mut out = create_anew(&partial.path).map_err(io)?;
        let (mut hash, mut fetched, mut failed) = (Xxh3::new(), 0, 0);
        while fetched < file.bytes {
            let path = format!("{ROOT}/traces/{token}/{}?from={fetched}", file.name);
            match self.ask("GET", &path, None) {
                Ok(bytes) if !bytes.is_empty() && fetched + bytes.len() as u64 <= file.bytes => {
                    out.write_all(&bytes).map_err(io)?;
                    hash.update(&bytes);
                    fetched += bytes.len() as u64;
                    failed = 0;
                }
                Ok(_) => return Err(format!("{}: another length than was said", file.name)),
                Err(problem) if failed == TRIES => return Err(problem),
                Err(_) => {
                    failed += 1;
                    std::thread::sleep(Duration::from_millis(200 << failed));
                }
            }
        }
        let got = format!("{:016x}", hash.digest());
        if got != file.checksum {
            return Err(format!("{}: expected checksum {}, got {got}", file.name, file.checksum));
        }
        out.sync_all().and_then(|()| fs::rename(&partial.path, to)).map_err(io)
    }

    fn json<T: DeserializeOwned>(
        &self,
        verb: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<T, String> {
        parse(&self.ask(verb, path, body)?)
    }

    fn ask(&self, verb: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let (status, bytes) = self.request(verb, path, body)?;
        accepted(status, bytes)
    }

    /// Status and body of the answer.
    fn request(
        &self,
        verb: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<(u16, Vec<u8>), String> {
        match &self.door {
            Door::Unix(place) => self.ask_unix(place, verb, path, body),
            Door::Tls { url, token, agent } => {
                ask_tls(agent, (verb, &format!("{url}{path}")), token, body)
            }
        }
    }

    fn ask_unix(
        &self,
        place: &SocketPlace,
        verb: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<(u16, Vec<u8>), String> {
        let words = |error: std::io::Error| format!("the agent of this host: {error}");
        let mut stream = control::connect(place).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                format!("{NO_AGENT} at {}", control::words(place))
            }
            _ => words(error),
        })?;
        stream.set_read_timeout(Some(self.patience)).map_err(words)?;
        let body = body.unwrap_or_default();
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).map_err(words)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(words)?;
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&answer).map_err(|error| error.to_string())?;
        let (httparse::Status::Complete(end), Some(code)) = (parsed, response.code) else {
            return Err("the agent of this host: its answer was cut".to_owned());
        };
        Ok((code, answer.split_off(end)))
    }
}

/// The body of an answer, or the reason why the agent refuses.
fn accepted(status: u16, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if (200..300).contains(&status) {
        return Ok(bytes);
    }
    let refusal: Option<OrderRefusal> = serde_json::from_slice(&bytes).ok();
    Err(refusal.map_or_else(|| format!("status {status}"), |refusal| refusal.error))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("another answer than expected: {error}"))
}

/// What to do about a problem of a request.
pub fn hint(problem: &str) -> Option<&'static str> {
    let hints = [
        (
            NO_AGENT,
            "start rowmill-agent (docs/agent.md); if it runs with a socket_dir, name that folder, such as \
             --socket-dir /run/kineto",
        ),
        (
            UNKNOWN_AUTHORITY,
            "name the certificate of the agents' authority, or their own: --ca FILE",
        ),
        (OTHER_NAME, "name the host as its certificate does"),
        (
            NO_TLS,
            "name the port of [listen] in the agent's configuration, such as --hosts HOST:9466; the \
             port of `metrics` has no TLS",
        ),
        (
            REFUSED,
            "nothing listens at this port: start rowmill-agent with [listen], or name another port: \
             --hosts HOST:PORT",
        ),
    ];
    hints.into_iter().find(|(words, _)| problem.contains(words)).map(|(_, hint)| hint)
}

/// A failure of a TLS connection in plain words.
fn connection_problem(error: &ureq::Error) -> String {
    let text = error.to_string();
    let got = |words: &str| text.contains(words);
    if got("UnknownIssuer") || got("CaUsedAsEndEntity") {
        format!("certificate: {UNKNOWN_AUTHORITY}")
    } else if got("NotValidForName") || got("certificate not valid for name") {
        format!("certificate: {OTHER_NAME}")
    } else if got("invalid peer certificate: Expired") || got("certificate expired") {
        "certificate: expected a valid one, got an expired one".to_owned()
    } else if got("InvalidContentType") {
        format!("port: {NO_TLS}")
    } else {
        text.strip_prefix("io: ").unwrap_or(&text).to_owned()
    }
}

/// A file on its way: removed where it does not come to its name, at the second Ctrl-C too.
struct Partial {
    path: PathBuf,
    _scope: interrupt::CleanupScope,
}

impl Partial {
    fn new(to: &Path) -> Self {
        let mut path = to.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let own = path.clone();
        // It may be whole by then, or not begun.
        let scope = interrupt::scoped(move || drop(fs::remove_file(&own)));
        Self { path, _scope: scope }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Calls `work` for every client on a thread of its own. Results keep the order of the clients.
pub fn each<T: Send>(clients: &[Client], work: impl Fn(&Client) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter().map(|client| scope.spawn(|| work(client))).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

fn ask_tls(
    agent: &ureq::Agent,
    (verb, url): (&str, &str),
    token: &str,
    body: Option<&[u8]>,
) -> Result<(u16, Vec<u8>), String> {
    let header = format!("Bearer {token}");
    let answer = match (verb, body) {
        ("POST", body) => {
            let request = agent.post(url).header("Authorization", &header);
            request.content_type("application/json").send(body.unwrap_or_default())
        }
        ("DELETE", _) => agent.delete(url).header("Authorization", &header).call(),
        _ => agent.get(url).header("Authorization", &header).call(),
    };
    let mut answer = answer.map_err(|error| connection_problem(&error))?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
    body.map(|bytes| (status, bytes)).map_err(|error| error.to_string())
}

fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
