//! Executes trace orders of the hub. Orders are fetched by long poll and executed like local ones.
//! The states of orders are queued like rows, and the traces are sent in parts. An order is stored
//! before it starts, so that an agent that was killed neither repeats it nor leaves the hub without
//! a result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleet::proto::{
    self, Body, ORDERS, Order, OrderState, Orders, OrdersWanted, PARTS, PartAck, SendOrder,
    TracePart, VERSION, Wanted,
};
use fleet::untrusted::{MissingFolder, OwnFolder};
use fleet::wire::{self, TraceState};
use serde::{Deserialize, Serialize};

use super::backoff::{WAIT_MIN, pause, record_outcome};
use super::link::SendFailure;
use super::outbox::{Hub, TICK};
use crate::config::Verb;
use crate::periodic::trace_store;
use crate::state::{AgentState, lock};
use crate::traces::Traces;
use crate::uids::Uids;

/// Maximum time by which the hub may delay the answer of a long poll.
const HELD: Duration = Duration::from_secs(30);
/// Largest number of bytes of a trace in one message to the hub.
const PART: u64 = 4 << 20;
/// The file name of the stored unfinished orders.
const LOG_FILE: &str = "orders.json";
/// Largest size of the file of unfinished orders, in bytes. A larger file was not written by the
/// agent.
const LOG_MAX: u64 = 1 << 20;
/// Name of the hub as a caller in audit lines.
const WHO: &str = "hub";

/// The unfinished orders, as stored on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OrderLog {
    /// Name of the queue to which the order numbers belong.
    queue: String,
    /// Largest order number received so far.
    after: u64,
    /// Numbers of the unfinished trace orders, by the name of the order.
    open: BTreeMap<String, u64>,
    /// Names of the kept periodic traces that unfinished orders send, by the name of the order.
    #[serde(default)]
    kept: BTreeMap<String, String>,
}

/// The state shared by the thread that fetches orders and the thread that reports their results.
struct OrderExecutor {
    state: Arc<AgentState>,
    hub: Arc<Hub>,
    traces: Arc<Traces>,
    folder: OwnFolder,
    log: Mutex<OrderLog>,
    /// Names of the trace orders that were started since the agent's start.
    begun: Mutex<BTreeSet<String>>,
}

/// What the hub has of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Upload {
    /// The number of bytes that the hub has from the start of the file.
    Received(u64),
    /// The reason why the hub never accepts this trace.
    Refused(String),
}

/// The uploads of traces, by the name of the order and of the file.
type Uploads = BTreeMap<(String, String), Upload>;

/// Reports interrupted orders, then starts the thread that fetches orders and the thread that
/// reports results. The threads are not started if the configuration allows the hub no orders.
pub fn start(
    state: &Arc<AgentState>,
    hub: &Arc<Hub>,
    traces: &Arc<Traces>,
    builder: impl Fn(&str) -> std::thread::Builder,
) -> std::io::Result<()> {
    let folder = OwnFolder::open(&state.config.state().join("hub"), MissingFolder::Make(0o700))?;
    let log = Mutex::new(read(&folder, &queue_name(hub))?);
    let (own, to, traces) = (Arc::clone(state), Arc::clone(hub), Arc::clone(traces));
    let executor = Arc::new(OrderExecutor {
        state: own,
        hub: to,
        traces,
        folder,
        log,
        begun: Mutex::default(),
    });
    executor.end_interrupted();
    if state.config.hub.as_ref().is_none_or(|config| config.verbs.is_empty()) {
        return Ok(());
    }
    let own = Arc::clone(&executor);
    builder("hub orders").spawn(move || own.fetch())?;
    builder("hub traces").spawn(move || executor.report())?;
    Ok(())
}

fn queue_name(hub: &Hub) -> String {
    lock(&hub.queue).id().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the stored orders of this queue. If the stored orders belong to another queue, starts with
/// an empty log.
fn read(folder: &OwnFolder, queue: &str) -> std::io::Result<OrderLog> {
    let bytes = folder.read(LOG_FILE, LOG_MAX)?.unwrap_or_default();
    let log: Option<OrderLog> = serde_json::from_slice(&bytes).ok();
    Ok(log
        .filter(|log| log.queue == queue)
        .unwrap_or_else(|| OrderLog { queue: queue.to_owned(), ..OrderLog::default() }))
}

impl OrderExecutor {
    /// Reports orders that a restart interrupted as ended. The traces of interrupted orders were
    /// deleted when the agent started. Periodic traces are kept, so they are sent nevertheless.
    fn end_interrupted(&self) {
        let mut log = lock(&self.log);
        let kept = log.kept.clone();
        let open = std::mem::take(&mut log.open);
        let (resumed, ended): (BTreeMap<_, _>, BTreeMap<_, _>) =
            open.into_iter().partition(|(token, _)| kept.contains_key(token));
        log.open = resumed;
        drop(log);
        lock(&self.begun).extend(kept.into_keys());
        for (token, id) in ended {
            self.queue_state(OrderState::ended(id, &token, "the agent was restarted meanwhile"));
        }
    }

    fn fetch(&self) {
        let mut wait = WAIT_MIN;
        while !self.state.is_ending() {
            let request = OrdersWanted {
                version: VERSION,
                host: self.hub.host.clone(),
                queue: lock(&self.hub.queue).id().to_vec(),
                after: lock(&self.log).after,
                wait_ms: u32::try_from(HELD.as_millis()).unwrap_or(0),
            };
            let asked = Instant::now();
            match self.hub.link.post::<_, Orders>(ORDERS, &request, HELD) {
                Ok(orders) => {
                    let is_empty = orders.orders.is_empty();
                    orders.orders.into_iter().for_each(|order| self.take(order));
                    wait = WAIT_MIN;
                    // A hub that answers an empty poll at once would otherwise be polled in a busy
                    // loop.
                    if is_empty && asked.elapsed() < TICK {
                        std::thread::sleep(TICK);
                    }
                }
                Err(
                    SendFailure::Away(why) | SendFailure::Blocked(why) | SendFailure::Refused(why),
                ) => {
                    record_outcome(&self.state, &self.hub, Some(&why));
                    wait = pause(&self.state, wait);
                }
            }
        }
    }

    /// Executes an order, unless it was received before.
    fn take(&self, order: Order) {
        if order.id <= lock(&self.log).after {
            return;
        }
        let (id, wanted) = (order.id, order.wanted);
        let (token, kept) = match &wanted {
            Some(Wanted::Trace(trace)) => (Some(trace.token.clone()), None),
            Some(Wanted::Send(order)) => (Some(order.token.clone()), Some(order.kept.clone())),
            _ => (None, None),
        };
        if let Err(error) = self.write(|log| {
            log.after = id;
            if let Some(token) = token.clone().filter(|token| !log.open.contains_key(token)) {
                log.kept.extend(kept.map(|kept| (token.clone(), kept)));
                log.open.insert(token, id);
            }
        }) {
            let problem = format!("orders of the hub cannot be saved, so none is started: {error}");
            self.state.note(problem.clone());
            let token = token.unwrap_or_default();
            return self.queue_state(OrderState::ended(id, &token, problem));
        }
        match wanted {
            Some(Wanted::Trace(trace)) => self.begin(id, trace.into()),
            Some(Wanted::Send(order)) => self.send_kept(id, &order),
            Some(Wanted::Cancel(token)) => {
                let error = self.granted(Verb::Trace, &token).err().unwrap_or_default();
                if error.is_empty() {
                    self.traces.cancel(&token);
                }
                self.queue_state(OrderState::ended(id, "", error));
            }
            Some(Wanted::Pause(proto::Pause { gpu, seconds })) => {
                let what = format!("gpu {gpu} {seconds} s");
                let done = self
                    .granted(Verb::Pause, &what)
                    .and_then(|()| self.state.pause(WHO, wire::Pause { gpu, seconds }));
                self.queue_state(OrderState::ended(id, "", done.err().unwrap_or_default()));
            }
            None => self.queue_state(OrderState::ended(
                id,
                "",
                "an order that this agent does not know",
            )),
        }
    }

    fn granted(&self, verb: Verb, what: &str) -> Result<(), String> {
        let config = self.state.config.hub.as_ref();
        if config.is_some_and(|config| config.verbs.contains(&verb)) {
            return Ok(());
        }
        self.state.audit.line(WHO, &format!("{verb:?}"), what, "refused: not granted");
        Err(format!("{WHO}: not granted: {verb:?}").to_lowercase())
    }

    fn begin(&self, id: u64, order: wire::TraceOrder) {
        let (token, what) = (order.token.clone(), format!("{} {:?}", order.token, order.when));
        let users = self.state.config.hub.as_ref().map(|config| config.users.clone());
        let users = users.unwrap_or_default();
        let uids = if users.is_empty() { Uids::All } else { Uids::Only(users) };
        let begun = self.granted(Verb::Trace, &what).and_then(|()| self.traces.begin(order, uids));
        let outcome = begun
            .as_ref()
            .map_or_else(String::clone, |state| format!("{} processes", state.rows.len()));
        self.state.audit.line(WHO, "trace", &what, &outcome);
        self.note_begun(id, token, begun.err());
    }

    /// Begins to send a kept periodic trace.
    fn send_kept(&self, id: u64, order: &SendOrder) {
        let what = format!("{} keeps {}", order.token, order.kept);
        let users = self.state.config.hub.as_ref().map(|config| config.users.clone());
        let users = users.unwrap_or_default();
        let begun = self.granted(Verb::Trace, &what).and_then(|()| {
            let kept = trace_store::find(&self.kept_folder(), &order.kept);
            let kept = kept.ok_or_else(|| "the trace is no longer kept".to_owned())?;
            let is_granted = users.is_empty() || users.contains(&kept.uid);
            is_granted.then_some(()).ok_or_else(|| format!("not granted: user {}", kept.uid))
        });
        let outcome = begun.as_ref().map_or_else(String::clone, |()| "begun".to_owned());
        self.state.audit.line(WHO, "send", &what, &outcome);
        self.note_begun(id, order.token.clone(), begun.err());
    }

    /// Notes that an order has begun, or ends it with the problem that prevents it.
    fn note_begun(&self, id: u64, token: String, problem: Option<String>) {
        let Some(problem) = problem else {
            lock(&self.begun).insert(token);
            return;
        };
        let _ = self.write(|log| {
            if log.open.get(&token) == Some(&id) {
                log.open.remove(&token);
                log.kept.remove(&token);
            }
        });
        self.queue_state(OrderState::ended(id, &token, problem));
    }

    fn kept_folder(&self) -> PathBuf {
        self.state.config.state().join("periodic")
    }

    /// Returns the state of the traces of an order, which may be a kept periodic trace.
    fn trace_state(&self, token: &str) -> Option<TraceState> {
        let Some(kept) = lock(&self.log).kept.get(token).cloned() else {
            return self.traces.state(token);
        };
        Some(trace_store::find(&self.kept_folder(), &kept)?.to_state(token))
    }

    fn open_trace(&self, token: &str, file: &str) -> Option<File> {
        match lock(&self.log).kept.get(token).cloned() {
            Some(kept) => trace_store::open_file(&self.kept_folder(), &kept, file),
            None => self.traces.open(token, file),
        }
    }

    /// Queues changed states of orders, and sends their traces to the hub one part at a time.
    fn report(&self) {
        let mut reported: BTreeMap<String, OrderState> = BTreeMap::new();
        let mut sent = Uploads::new();
        let mut wait = WAIT_MIN;
        while !self.state.is_ending() {
            let open = lock(&self.log).open.clone();
            let mut is_sending = false;
            let begun = lock(&self.begun).clone();
            for (token, id) in open.into_iter().filter(|(token, _)| begun.contains(token)) {
                let Some(state) = self.trace_state(&token) else {
                    self.end(&token, OrderState::ended(id, &token, "its traces no longer exist"));
                    continue;
                };
                let mut now = OrderState::new(id, &state);
                mark_refused(&mut now, &sent);
                if !state.is_over && reported.get(&token) != Some(&now) {
                    self.queue_state(now.clone());
                    reported.insert(token.clone(), now.clone());
                }
                match self.send_part(&state, &mut sent) {
                    Ok(true) if state.is_over => {
                        self.end(&token, now);
                        self.traces.cancel(&token);
                        reported.remove(&token);
                        sent.retain(|(order, _), _| *order != token);
                    }
                    Ok(is_all) => (is_sending, wait) = (is_sending || !is_all, WAIT_MIN),
                    Err(why) => {
                        record_outcome(&self.state, &self.hub, Some(&why));
                        wait = pause(&self.state, wait);
                    }
                }
            }
            if !is_sending {
                std::thread::sleep(TICK);
            }
        }
    }

    /// Sends the next part of an order's traces. Returns whether the hub has received all traces
    /// that exist so far.
    fn send_part(&self, state: &TraceState, sent: &mut Uploads) -> Result<bool, String> {
        for file in state.rows.iter().filter_map(|row| row.file.as_ref()) {
            let key = (state.token.clone(), file.name.clone());
            let bytes_sent = match sent.get(&key) {
                Some(Upload::Refused(_)) => continue,
                Some(Upload::Received(bytes)) if *bytes == file.bytes => continue,
                Some(Upload::Received(bytes)) => Some(*bytes),
                None => None,
            };
            let mut bytes = Vec::new();
            // After a restart it is unknown how much of the file the hub has. The first message is
            // therefore empty, and its answer reports the received bytes.
            if let Some(from) = bytes_sent {
                let open = self.open_trace(&state.token, &file.name);
                let mut opened = open.ok_or_else(|| format!("{}: it is gone", file.name))?;
                opened
                    .seek(SeekFrom::Start(from))
                    .and_then(|_| opened.take(PART).read_to_end(&mut bytes))
                    .map_err(|error| format!("{}: {error}", file.name))?;
            }
            let part = TracePart {
                version: VERSION,
                host: self.hub.host.clone(),
                queue: lock(&self.hub.queue).id().to_vec(),
                token: state.token.clone(),
                file: Some(file.into()),
                offset: bytes_sent.unwrap_or(0),
                bytes,
            };
            let upload = match self.hub.link.post::<_, PartAck>(PARTS, &part, Duration::ZERO) {
                Ok(ack) => Upload::Received(ack.received.min(file.bytes)),
                Err(SendFailure::Refused(why)) => Upload::Refused(why),
                Err(SendFailure::Away(why) | SendFailure::Blocked(why)) => return Err(why),
            };
            sent.insert(key, upload);
            return Ok(false);
        }
        Ok(true)
    }

    fn end(&self, token: &str, state: OrderState) {
        self.queue_state(state);
        lock(&self.begun).remove(token);
        let _ = self.write(|log| {
            log.open.remove(token);
            log.kept.remove(token);
        });
    }

    fn queue_state(&self, state: OrderState) {
        if let Err(error) = self.hub.add_events(vec![Body::Order(state)]) {
            self.state.note(format!("queue of the hub: {error}"));
        }
    }

    /// Changes the log of unfinished orders and writes it to disk.
    fn write(&self, change: impl FnOnce(&mut OrderLog)) -> std::io::Result<()> {
        let mut log = lock(&self.log);
        change(&mut log);
        Ok(self.folder.replace(LOG_FILE, &serde_json::to_vec(&*log)?)?)
    }
}

/// Marks the processes whose traces the hub refuses as lost.
fn mark_refused(state: &mut OrderState, uploads: &Uploads) {
    for process in &mut state.processes {
        let Some(file) = &process.file else { continue };
        let key = (state.token.clone(), file.name.clone());
        if let Some(Upload::Refused(why)) = uploads.get(&key) {
            process.reason = format!("the hub refuses its trace: {why}");
            (process.state, process.file) = ("lost".to_owned(), None);
        }
    }
}
