//! The hub that this agent reports to: rows are sent from a queue on disk, orders arrive by long
//! poll, so that the host opens no port. Without a hub, or while it is down, everything else works.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet::proto::{Ack, BATCHES, Body, Entry, EntryBatch, VERSION};

use crate::config::{ConfigError, HubConfig};
use crate::state::{AgentState, lock};
use crate::traces::Traces;
use link::{HubLink, SendFailure};
use queue::{DiskQueue, is_wrong_clock};

mod link;
mod orders;
mod queue;
pub mod row;

/// Entries of one batch.
const BATCH_ENTRIES: usize = 512;
/// Bytes of one batch.
const BATCH_BYTES: usize = 1 << 20;
/// The first wait after a failure; each further one is twice as long.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// The longest wait after a failure.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How often a waiting thread looks whether the agent ends.
const TICK: Duration = Duration::from_millis(500);

/// The hub.
#[derive(Debug)]
pub struct Hub {
    queue: Mutex<DiskQueue>,
    added: Condvar,
    link: HubLink,
    host: String,
    /// Rows of intervals up to this one were queued by an agent before this one.
    floor: u64,
    repeated: AtomicU64,
    sent: AtomicU64,
    failures: AtomicU64,
    is_up: AtomicBool,
}

/// How the queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTally {
    pub queued: u64,
    /// Their bytes on disk, with those of delivered ones whose segment is still there.
    pub bytes: u64,
    /// Entries the hub has taken.
    pub sent: u64,
    /// Entries that did not fit, could not be written, or were refused.
    pub dropped: u64,
    /// Rows of intervals that had been queued before a restart.
    pub repeated: u64,
    pub failures: u64,
    /// Whether the last request was answered.
    pub is_up: bool,
}

/// Outcome of one delivery attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Delivery {
    Idle,
    /// The hub has stored something.
    Sent,
    /// The hub refused a batch: its entries go one by one.
    Refused(String),
    /// The hub did not answer.
    Failed(String),
}

impl Hub {
    /// Opens the queue and reads token and certificate; nothing is sent yet.
    ///
    /// # Errors
    /// The queue cannot be opened, or a file cannot be read.
    pub fn open(config: &HubConfig, folder: &Path, host: &str) -> Result<Self, ConfigError> {
        let what = folder.display();
        let queue = DiskQueue::open(folder, config.queue_mib << 20)
            .map_err(ConfigError::start(format!("{what}: cannot open the queue of the hub")))?;
        let floor = queue.last_start();
        // A queue whose rows are from the future was filled on a wrong clock: new rows are no
        // repetitions of them.
        let floor =
            if is_wrong_clock(floor, crate::state::unix_ns() / 1_000_000_000) { 0 } else { floor };
        Ok(Self {
            link: HubLink::new(config)?,
            queue: Mutex::new(queue),
            added: Condvar::new(),
            host: host.to_owned(),
            floor,
            repeated: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_up: AtomicBool::new(false),
        })
    }

    /// Why token and certificate cannot be used.
    pub fn check(config: &HubConfig) -> Vec<ConfigError> {
        let token = link::token(config).err();
        token.into_iter().chain(link::tls(config).err()).collect()
    }

    /// Queues rows of an interval; a clock that was set back while no agent ran does not double
    /// them. What the disk does not take is counted.
    pub fn add_rows(&self, start_unix_s: u64, rows: Vec<Body>) -> std::io::Result<()> {
        if start_unix_s <= self.floor {
            self.repeated.fetch_add(rows.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.add(start_unix_s, rows)
    }

    fn add(&self, start_unix_s: u64, bodies: Vec<Body>) -> std::io::Result<()> {
        let entry = |body| Entry { sequence: 0, body: Some(body) };
        let added = lock(&self.queue).append(start_unix_s, bodies.into_iter().map(entry).collect());
        self.added.notify_all();
        added
    }

    /// How it stands.
    pub fn tally(&self) -> QueueTally {
        let queue = lock(&self.queue);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QueueTally {
            queued: queue.len(),
            bytes: queue.bytes(),
            sent: read(&self.sent),
            dropped: queue.dropped(),
            repeated: read(&self.repeated),
            failures: read(&self.failures),
            is_up: self.is_up.load(Ordering::Relaxed),
        }
    }

    /// Sends what waits, `entries_max` at most, and forgets what the hub has stored.
    fn deliver(&self, entries_max: usize) -> Delivery {
        let (queue, gone_through, entries) = {
            let mut queue = lock(&self.queue);
            match queue.peek(entries_max, BATCH_BYTES) {
                Ok(entries) => (queue.id().to_vec(), queue.gone_through(), entries),
                Err(error) => return Delivery::Failed(format!("queue: {error}")),
            }
        };
        let Some(last) = entries.last().map(|entry| entry.sequence) else { return Delivery::Idle };
        let (host, count) = (self.host.clone(), entries.len());
        let batch = EntryBatch { version: VERSION, host, queue, gone_through, entries };
        match self.link.post::<_, Ack>(BATCHES, &batch, Duration::ZERO) {
            Ok(ack) => {
                // More than was sent is not the hub's to say.
                let through = ack.through.min(last);
                self.sent.fetch_add(through.saturating_sub(gone_through), Ordering::Relaxed);
                match lock(&self.queue).forget(through) {
                    Ok(()) if through > gone_through => Delivery::Sent,
                    Ok(()) => Delivery::Failed("it stores nothing of what it is sent".to_owned()),
                    Err(error) => Delivery::Failed(format!("queue: {error}")),
                }
            }
            Err(SendFailure::Refused(why)) if count == 1 => match lock(&self.queue).refuse(last) {
                Ok(()) => Delivery::Refused(why),
                Err(error) => Delivery::Failed(format!("queue: {error}")),
            },
            Err(SendFailure::Refused(why)) => Delivery::Refused(why),
            Err(SendFailure::Blocked(why)) if count > 1 => Delivery::Refused(why),
            Err(SendFailure::Blocked(why) | SendFailure::Away(why)) => Delivery::Failed(why),
        }
    }

    /// Notes whether a request was answered, and says the first failure of a series.
    fn count(&self, state: &AgentState, problem: Option<&str>) {
        let was_up = self.is_up.swap(problem.is_none(), Ordering::Relaxed);
        let Some(problem) = problem else { return };
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0 || was_up {
            state.note(format!("hub {}: {problem}", self.link.url()));
        }
    }

    /// Waits until something was added, or a tick is over.
    fn wait(&self) {
        let queue = lock(&self.queue);
        let waited = self.added.wait_timeout(queue, TICK);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Begins to send rows and to fetch orders.
///
/// # Errors
/// The operating system gives no thread.
pub fn start(state: &Arc<AgentState>, traces: &Arc<Traces>) -> std::io::Result<()> {
    let Some(hub) = &state.hub else { return Ok(()) };
    let builder =
        |name: &str| std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10);
    let (own, to) = (Arc::clone(state), Arc::clone(hub));
    builder("hub rows").spawn(move || send(&own, &to))?;
    orders::start(state, hub, traces, builder)
}

fn send(state: &AgentState, hub: &Hub) {
    let mut wait = WAIT_MIN;
    let mut alone = 0_usize;
    while !state.is_ending() {
        let limit = if alone > 0 { 1 } else { BATCH_ENTRIES };
        match hub.deliver(limit) {
            Delivery::Idle => hub.wait(),
            Delivery::Sent => {
                hub.count(state, None);
                (wait, alone) = (WAIT_MIN, alone.saturating_sub(1));
            }
            Delivery::Refused(why) => {
                state.note(format!("hub {}: refuses rows: {why}", hub.link.url()));
                alone = if alone > 0 { alone - 1 } else { BATCH_ENTRIES };
            }
            Delivery::Failed(why) => {
                hub.count(state, Some(&why));
                wait = pause(state, wait);
            }
        }
    }
}

/// Waits after a failure; how long to wait after the next one. A part of it is by chance, so that
/// ten thousand agents do not come back at once.
fn pause(state: &AgentState, wait: Duration) -> Duration {
    let chance = u32::from_le_bytes([crate::state::unix_ns().to_le_bytes()[1]; 4]) % 256;
    let until = Instant::now() + wait / 2 + wait * chance / 512;
    while !state.is_ending() && Instant::now() < until {
        std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
    }
    (wait * 2).min(WAIT_MAX)
}

#[cfg(test)]
mod tests;
