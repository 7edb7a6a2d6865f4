//! Simulated agents: each keeps the rows of its host in a queue until the hub confirms them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet::proto::{Ack, BATCHES, Body, CONTENT_TYPE, Entry, EntryBatch, SIZE_MAX, VERSION};
use fleet::untrusted::{Privacy, read_trusted};
use prost::Message;
use schema::random::{CounterRng, mix};

use ureq::tls::TlsConfig;

use super::fault::{SimulatedFault, ahead_s, fault};
use super::fleet::HostRows;
use crate::error::Error;
use crate::log::say;
use crate::tls;

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest number of entries of a batch, as real agents send them.
const BATCH_ENTRIES: usize = 512;
/// Time after which a batch that the hub cannot take now is sent again.
const RETRY: Duration = Duration::from_millis(200);
/// Share of the batches that are sent twice if [`SimulatedFault::Repeated`] is simulated.
const REPEATED: f64 = 0.05;
/// The minutes of each hour in which an agent of [`SimulatedFault::Late`] is cut off.
const CUT_OFF_MINUTES: std::ops::Range<u64> = 10..15;

/// Where a hub listens, and how it is known.
#[derive(Clone, Debug)]
pub struct HubAddress {
    pub url: String,
    pub token: String,
    pub tls: TlsConfig,
}

impl HubAddress {
    /// Reads the token and the certificate.
    ///
    /// # Errors
    /// If the URL has another scheme, or if a file cannot be read.
    pub fn new(url: &str, token: &Path, ca: Option<&Path>) -> Result<Self, Error> {
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let what = "--hub".to_owned();
            return Err(Error::Value { what, expected: "http://… or https://…", got: url });
        }
        let token = read(token, "--token")?;
        let token = String::from_utf8_lossy(&token).trim().to_owned();
        if token.is_empty() || token.contains(|letter: char| !letter.is_ascii_graphic()) {
            let (what, expected) = ("--token".to_owned(), "a file with one token");
            return Err(Error::Value { what, expected, got: "another text".to_owned() });
        }
        let tls = tls::trust(ca, "--ca")?;
        Ok(Self { url, token, tls })
    }

    fn client(&self) -> ureq::Agent {
        ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .tls_config(self.tls.clone())
            .build()
            .new_agent()
    }
}

/// The agent of one simulated host.
#[derive(Debug)]
pub struct SimulatedAgent {
    host: String,
    fault: Option<SimulatedFault>,
    /// Seconds by which the clock of the host is ahead.
    ahead_s: u64,
    repeats: bool,
    queues: Vec<AgentQueue>,
}

/// A numbered queue of entries, as the folder of an agent holds it.
#[derive(Debug)]
struct AgentQueue {
    name: [u8; 16],
    confirmed: u64,
    entries: VecDeque<Body>,
}

/// What all sending threads share.
#[derive(Debug)]
pub struct SenderState {
    pub hub: HubAddress,
    /// Entries that the hub has confirmed.
    pub confirmed: AtomicU64,
    /// Batches that the hub refused for now.
    pub delayed: AtomicU64,
    /// Whether the hub did not answer the last request.
    pub is_away: AtomicBool,
    pub stop: Arc<AtomicBool>,
}

/// The rows of one interval for the hosts of a thread.
#[derive(Debug)]
pub struct SenderRound {
    pub start_s: u64,
    pub rows: Vec<HostRows>,
    /// Whether the next interval is in the past too, so that entries may wait for a full batch.
    pub is_past: bool,
    /// Whether agents that are cut off send now too, because the simulation ends.
    pub is_last: bool,
}

impl SimulatedAgent {
    /// Creates the agent of a host.
    pub fn new(host: &str, at: u64, seed: u64, faults: &[SimulatedFault]) -> Self {
        let fault = fault(at, faults);
        let copies = if fault == Some(SimulatedFault::Doubled) { 2 } else { 1 };
        let queue = |copy: u64| {
            let rng = CounterRng::new(mix(seed), 1 + at).child(copy);
            let mut name = [0; 16];
            name[..8].copy_from_slice(&rng.bits(0).to_le_bytes());
            name[8..].copy_from_slice(&rng.bits(1).to_le_bytes());
            AgentQueue { name, confirmed: 0, entries: VecDeque::new() }
        };
        let repeats = faults.contains(&SimulatedFault::Repeated);
        let queues = (0..copies).map(queue).collect();
        Self { host: host.to_owned(), fault, ahead_s: ahead_s(at, faults), repeats, queues }
    }

    fn add(&mut self, rows: &HostRows) {
        self.queues.iter_mut().for_each(|queue| queue.entries.extend(rows.bodies()));
    }

    /// Sends batches until fewer than `least` entries are left.
    fn send(
        &mut self,
        agent: &ureq::Agent,
        state: &SenderState,
        least: usize,
    ) -> Result<(), Error> {
        for queue in &mut self.queues {
            while queue.entries.len() >= least && !state.stop.load(Ordering::Relaxed) {
                let batch = queue.batch(&self.host, self.ahead_s);
                let last = queue.confirmed + batch.entries.len() as u64;
                let bytes = batch.encode_to_vec();
                let draw = CounterRng::new(u64::from(queue.name[0]), last);
                let repeats = self.repeats && draw.unit(0) < REPEATED;
                for _ in 0..=u32::from(repeats) {
                    while !post(agent, state, &bytes, last)? {
                        state.delayed.fetch_add(1, Ordering::Relaxed);
                        if state.stop.load(Ordering::Relaxed) {
                            return Ok(());
                        }
                        std::thread::sleep(RETRY);
                    }
                }
                queue.entries.drain(..batch.entries.len());
                queue.confirmed = last;
                state.confirmed.fetch_add(batch.entries.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn is_cut_off(&self, start_s: u64) -> bool {
        self.fault == Some(SimulatedFault::Late) && CUT_OFF_MINUTES.contains(&(start_s / 60 % 60))
    }
}

impl AgentQueue {
    fn batch(&self, host: &str, ahead_s: u64) -> EntryBatch {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX) + ahead_s * 1000;
        let bodies = self.entries.iter().take(BATCH_ENTRIES).cloned();
        let numbers = self.confirmed + 1..;
        let entries = numbers.zip(bodies);
        EntryBatch {
            version: VERSION,
            host: host.to_owned(),
            queue: self.name.to_vec(),
            gone_through: self.confirmed,
            sent_unix_ms: Some(sent_unix_ms),
            entries: entries.map(|(sequence, body)| Entry { sequence, body: Some(body) }).collect(),
        }
    }
}

/// Sends the rows of each round for the agents of one thread, until there are no more rounds.
///
/// # Errors
/// If the hub refuses a batch for good, or is not a hub.
pub fn send_rounds(
    agents: &mut [Option<SimulatedAgent>],
    rounds: &Receiver<SenderRound>,
    state: &SenderState,
) -> Result<(), Error> {
    let http = state.hub.client();
    for round in rounds {
        for rows in &round.rows {
            if let Some(agent) = &mut agents[rows.host] {
                agent.add(rows);
            }
        }
        let least = if round.is_past && !round.is_last { BATCH_ENTRIES } else { 1 };
        for agent in agents.iter_mut().flatten() {
            if round.is_last || !agent.is_cut_off(round.start_s) {
                agent.send(&http, state, least)?;
            }
        }
    }
    Ok(())
}

/// Posts a batch. Returns whether the hub stored it; otherwise it may do so later.
fn post(http: &ureq::Agent, state: &SenderState, bytes: &[u8], last: u64) -> Result<bool, Error> {
    let HubAddress { url, token, .. } = &state.hub;
    let wrong = |got: String| Error::Value {
        what: format!("{url}{BATCHES}"),
        expected: "an answer of a hub that stores the rows",
        got,
    };
    let request = http.post(format!("{url}{BATCHES}"));
    let request = request.header("Authorization", format!("Bearer {token}"));
    let mut answer = match request.content_type(CONTENT_TYPE).send(bytes) {
        Ok(answer) => answer,
        // The hub may be restarting.
        Err(
            error @ (ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::Timeout(_)),
        ) => {
            if !state.is_away.swap(true, Ordering::Relaxed) {
                say(&format!("note: {url} does not answer and is asked again: {error}"));
            }
            return Ok(false);
        }
        Err(error) => return Err(wrong(error.to_string())),
    };
    state.is_away.store(false, Ordering::Relaxed);
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(SIZE_MAX as u64).read_to_vec();
    let Ok(body) = body else { return Ok(false) };
    match status {
        200 => Ok(Ack::decode(body.as_slice()).is_ok_and(|ack| ack.through == last)),
        429 | 503 => Ok(false),
        _ => Err(wrong(format!("{status}: {}", String::from_utf8_lossy(&body)))),
    }
}

fn read(path: &Path, key: &'static str) -> Result<Vec<u8>, Error> {
    read_trusted(path, Privacy::Readable).map_err(|source| Error::File { key, source })
}
