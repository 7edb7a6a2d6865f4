//! A client of one agent. The client connects over the agent's socket on this host, or over TLS
//! with a token to another host.
//!
//! Failed requests return texts instead of errors of the command. If one host does not answer, its
//! ranks are reported as lost, and the other hosts continue.

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
use ureq::tls::TlsConfig;
use xxhash_rust::xxh3::Xxh3;

use crate::args::Reach;
use setup::error::{Error, UsageError};
use setup::interrupt;

/// Problems that the client reports itself, and for which [`find_hint`] has advice.
const NO_AGENT: &str = "no agent answers on this host";
const UNKNOWN_AUTHORITY: &str =
    "expected one signed by a known authority, got one of an unknown authority";
const OTHER_NAME: &str = "expected one for this host name, got one for another host";
const NO_TLS: &str = "expected TLS, got another protocol";
const REFUSED: &str = "Connection refused";
/// Default TLS port on which agents listen.
const PORT: u16 = 9466;
/// Largest size of a response in bytes. Traces are larger, but are fetched in parts of 4 MiB.
const ANSWER_MAX: u64 = 16 << 20;
/// Largest number of headers of a response.
const HEADERS_MAX: usize = 32;
/// Number of readings of a host's clock, of which the one with the shortest round trip is used.
const CLOCK_READINGS: usize = 5;
/// Number of times a part of a trace is requested again before the fetch fails.
const RETRIES: u32 = 5;

/// A connection to the agent of one host, over its socket or over HTTPS.
pub struct Client {
    name: String,
    connection: Connection,
    patience: Duration,
}

/// The connection to an agent, which is the local socket or, for remote hosts, HTTPS with a token.
enum Connection {
    Unix(SocketPlace),
    Tls { url: String, token: String, agent: ureq::Agent },
}

/// The difference between a host's clock and the clock of this host. The difference is needed to
/// start all ranks at the same time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostClock {
    /// The host's clock minus the clock of this host, in nanoseconds.
    pub offset_ns: i64,
    /// Bound of the error of `offset_ns`, which is half of the shortest round trip.
    pub uncertainty_ns: u64,
}

impl HostClock {
    /// Formats the offset and the bound of its error in milliseconds, for people.
    pub fn describe(self) -> String {
        let ms = |ns: f64| ns * 1e-6;
        format!("{:+.1} ms ± {:.1}", ms(self.offset_ns as f64), ms(self.uncertainty_ns as f64))
    }
}

/// Makes a client for each of the agents on other hosts. Nothing is sent yet.
///
/// # Errors
/// The token file or the certificate file is missing or empty.
pub fn connect_remote(
    hosts: BTreeSet<String>,
    reach: &Reach,
    patience: Duration,
) -> Result<Vec<Client>, Error> {
    let Some(path) = &reach.token_file else { return Err(UsageError::NoToken.into()) };
    let token = read_token(path)?;
    let agent = open_http(reach.ca.as_deref(), patience, Encryption::Required)?;
    let client = |name: String| {
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let url =
            if has_port { format!("https://{name}") } else { format!("https://{name}:{PORT}") };
        Client {
            name,
            connection: Connection::Tls { url, token: token.clone(), agent: agent.clone() },
            patience,
        }
    };
    Ok(hosts.into_iter().map(client).collect())
}

/// Reads a token from its file.
///
/// # Errors
/// The file is missing or empty.
pub fn read_token(path: &Path) -> Result<String, Error> {
    let token = fs::read_to_string(path).map_err(Error::io(path, "read"))?.trim().to_owned();
    if token.is_empty() {
        return Err(UsageError::EmptyToken { path: path.to_owned() }.into());
    }
    Ok(token)
}

/// Whether requests may be sent without TLS, which is safe only within this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    Required,
    Optional,
}

/// Prepares HTTP requests. Without a certificate, the public authorities are trusted.
///
/// # Errors
/// The certificate file is missing or empty.
pub fn open_http(
    ca: Option<&Path>,
    patience: Duration,
    encryption: Encryption,
) -> Result<ureq::Agent, Error> {
    let tls = match ca {
        Some(path) => {
            let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
            let none = || UsageError::NoCertificate { path: path.to_owned() };
            fleet::trust::trust_only(&bytes).ok_or_else(none)?
        }
        None => TlsConfig::default(),
    };
    Ok(ureq::Agent::config_builder()
        .https_only(encryption == Encryption::Required)
        .http_status_as_error(false)
        // A redirect would send the token to an address that the user did not name.
        .max_redirects(0)
        .timeout_global(Some(patience))
        .tls_config(tls)
        .build()
        .new_agent())
}

/// One HTTP request to an agent: method, path and body.
#[derive(Clone, Copy)]
struct AgentRequest<'a> {
    method: &'a str,
    path: &'a str,
    body: Option<&'a [u8]>,
}

/// The status and the body of an HTTP response.
type AgentResponse = (u16, Vec<u8>);

impl Client {
    /// Makes a client of the agent of this host, which needs neither token nor certificate.
    pub fn local(place: SocketPlace, patience: Duration) -> Self {
        Self { name: "this host".to_owned(), connection: Connection::Unix(place), patience }
    }

    /// Whether this is the client of this host's own agent.
    pub fn is_local(&self) -> bool {
        matches!(self.connection, Connection::Unix(_))
    }

    /// The name of the host, as the user typed it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an agent accepts connections at the socket of this host. Remote agents are assumed
    /// to accept connections until a request fails.
    pub fn is_listening(&self) -> bool {
        match &self.connection {
            Connection::Unix(place) => control::connect(place).is_ok(),
            Connection::Tls { .. } => true,
        }
    }

    /// Fetches the processes, GPUs and notes of a host, and estimates the offset of its clock.
    pub fn fetch_status(&self) -> Result<(Status, HostClock), String> {
        let mut best: Option<(Status, HostClock)> = None;
        for _ in 0..CLOCK_READINGS {
            let before = unix_ns();
            let status: Status = self.get_json("GET", &format!("{ROOT}/status"), None)?;
            let after = unix_ns();
            // The request and the answer are assumed to take the same time, so the host's clock was
            // read in the middle.
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

    /// Orders traces from the agent, and returns the state of the order.
    pub fn order_traces(&self, order: &TraceOrder) -> Result<TraceState, String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.get_json("POST", &format!("{ROOT}/traces"), Some(&body))
    }

    /// Fetches the state of an order. Returns `None` if the agent does not know the order.
    pub fn fetch_state(&self, token: &str) -> Result<Option<TraceState>, String> {
        let path = format!("{ROOT}/traces/{token}");
        match self.send(AgentRequest { method: "GET", path: &path, body: None })? {
            (404, _) => Ok(None),
            (status, bytes) => parse_json(&accept(status, bytes)?).map(Some),
        }
    }

    /// Requests that the agent deletes an order and its traces.
    pub fn delete_order(&self, token: &str) {
        // A failure does no harm, because agents delete finished orders after an hour.
        let _ = self.get_body("DELETE", &format!("{ROOT}/traces/{token}"), None);
    }

    /// Makes the agent release the hardware counters of a GPU for a while, for other profilers.
    pub fn pause_counters(&self, order: &Pause) -> Result<(), String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.get_body("POST", &format!("{ROOT}/pause"), Some(&body)).map(drop)
    }

    /// Requests samples of processes. The answer arrives after the duration that the order states.
    pub fn sample_processes(&self, order: &SampleOrder) -> Result<Samples, String> {
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        self.get_json("POST", &format!("{ROOT}/samples"), Some(&body))
    }

    /// Fetches a trace into the file `to`. The file appears only when it is complete and its
    /// checksum is right. If a part fails, it is requested again, starting at the last received
    /// byte.
    pub fn fetch_trace(&self, token: &str, file: &TraceFile, to: &Path) -> Result<(), String> {
        let partial = PartialFile::new(to);
        let io = |error: std::io::Error| format!("{}: {error}", to.display());
        let mut out = create_anew(&partial.path).map_err(io)?;
        let (mut hash, mut fetched, mut failed) = (Xxh3::new(), 0, 0);
        // The length is checked in every round, so that a faulty agent cannot fill the disk by
        // sending more bytes than it announced.
        while fetched < file.bytes {
            let path = format!("{ROOT}/traces/{token}/{}?from={fetched}", file.name);
            match self.get_body("GET", &path, None) {
                Ok(bytes) if !bytes.is_empty() && fetched + bytes.len() as u64 <= file.bytes => {
                    out.write_all(&bytes).map_err(io)?;
                    hash.update(&bytes);
                    fetched += bytes.len() as u64;
                    failed = 0;
                }
                Ok(_) => {
                    return Err(format!(
                        "{}: expected {} bytes, got another number",
                        file.name, file.bytes
                    ));
                }
                Err(problem) if failed == RETRIES => return Err(problem),
                Err(_) => {
                    // The waits are 0.4 s, 0.8 s, … up to 6.4 s, which together outlast a restart
                    // of the agent.
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

    fn get_json<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<T, String> {
        parse_json(&self.get_body(method, path, body)?)
    }

    fn get_body(&self, method: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let (status, bytes) = self.send(AgentRequest { method, path, body })?;
        accept(status, bytes)
    }

    fn send(&self, request: AgentRequest<'_>) -> Result<AgentResponse, String> {
        match &self.connection {
            Connection::Unix(place) => self.send_unix(place, request),
            Connection::Tls { url, token, agent } => {
                let url = format!("{url}{}", request.path);
                send_tls(agent, AgentRequest { path: &url, ..request }, token)
            }
        }
    }

    fn send_unix(
        &self,
        place: &SocketPlace,
        request: AgentRequest<'_>,
    ) -> Result<AgentResponse, String> {
        let AgentRequest { method, path, body } = request;
        let words = |error: std::io::Error| format!("the agent of this host: {error}");
        let mut stream = control::connect(place).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                format!("{NO_AGENT} at {}", control::words(place))
            }
            _ => words(error),
        })?;
        stream.set_read_timeout(Some(self.patience)).map_err(words)?;
        let body = body.unwrap_or_default();
        // With `Connection: close` the agent ends the stream after its answer, so the answer can be
        // read to the end.
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\n\
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
            return Err("the agent of this host: its answer is incomplete".to_owned());
        };
        Ok((code, answer.split_off(end)))
    }
}

/// Returns the body of a successful response, or the reason why the agent refused the request.
fn accept(status: u16, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if (200..300).contains(&status) {
        return Ok(bytes);
    }
    let refusal: Option<OrderRefusal> = serde_json::from_slice(&bytes).ok();
    Err(refusal.map_or_else(|| format!("status {status}"), |refusal| refusal.error))
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("unexpected answer: {error}"))
}

/// Finds advice for the problem of a failed request.
pub fn find_hint(problem: &str) -> Option<&'static str> {
    let hints = [
        (
            NO_AGENT,
            "start rowmill-agent (docs/agent.md); if it runs with a socket_dir, name that folder, such as \
             --socket-dir /run/kineto",
        ),
        (
            UNKNOWN_AUTHORITY,
            "pass the CA certificate of the agents, or their own certificate: --ca FILE",
        ),
        (OTHER_NAME, "use the host name that is in its certificate"),
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

/// Describes in plain words why a TLS connection failed.
pub fn describe_failure(error: &ureq::Error) -> String {
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

/// A partly fetched file. The file is removed on drop unless it was renamed to its final name. A
/// second Ctrl-C, which runs no destructors, removes the file too.
struct PartialFile {
    path: PathBuf,
    _scope: interrupt::CleanupScope,
}

impl PartialFile {
    fn new(to: &Path) -> Self {
        let mut path = to.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let own = path.clone();
        // Removal may fail, because the file may have been renamed already, or may not exist yet.
        let scope = interrupt::scoped(move || drop(fs::remove_file(&own)));
        Self { path, _scope: scope }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Calls `work` for every client on a thread of its own, so that a host that does not answer does
/// not delay the others. The results are in the order of the clients.
pub fn ask_each<T: Send>(clients: &[Client], work: impl Fn(&Client) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter().map(|client| scope.spawn(|| work(client))).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

/// Sends a request over TLS to a complete URL.
fn send_tls(
    agent: &ureq::Agent,
    request: AgentRequest<'_>,
    token: &str,
) -> Result<AgentResponse, String> {
    let AgentRequest { method, path: url, body } = request;
    let header = format!("Bearer {token}");
    let answer = match (method, body) {
        ("POST", body) => {
            let request = agent.post(url).header("Authorization", &header);
            request.content_type("application/json").send(body.unwrap_or_default())
        }
        ("DELETE", _) => agent.delete(url).header("Authorization", &header).call(),
        _ => agent.get(url).header("Authorization", &header).call(),
    };
    let mut answer = answer.map_err(|error| describe_failure(&error))?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
    body.map(|bytes| (status, bytes)).map_err(|error| error.to_string())
}

fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
