//! The queue of counter rows for the hub, and their delivery. This module does not use the agent's
//! state.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use fleet::proto::{Ack, BATCHES, Body, Entry, EntryBatch, VERSION};

use super::link::{HubLink, SendFailure, tls, token};
use super::queue::{DiskQueue, is_wrong_clock};
use crate::clock::unix_ns;
use crate::config::{ConfigError, HubConfig};
use crate::lock::lock;

/// Largest number of bytes of queue entries in one message to the hub.
const BATCH_BYTES: usize = 1 << 20;
/// Interval at which a waiting thread checks whether the agent is ending.
pub(super) const TICK: Duration = Duration::from_millis(500);

/// The client side of the hub: the queue of entries on disk, the connection, and counters of
/// deliveries.
#[derive(Debug)]
pub struct Hub {
    pub(super) queue: Mutex<DiskQueue>,
    added: Condvar,
    pub(super) link: HubLink,
    pub(super) host: String,
    /// Start in seconds of the newest interval that was queued before the agent was restarted.
    floor: u64,
    repeated: AtomicU64,
    sent: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) is_up: AtomicBool,
}

/// Counters of the queue and of its deliveries to the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTally {
    pub queued: u64,
    /// Bytes of the queue on disk, including delivered entries whose segment file still exists.
    pub bytes: u64,
    /// Entries that the hub has stored.
    pub sent: u64,
    /// Entries that did not fit, could not be written, or were refused by the hub.
    pub dropped: u64,
    /// Rows that were left out because their interval had been queued before a restart.
    pub repeated: u64,
    pub failures: u64,
    /// Whether the hub answered the last request.
    pub is_up: bool,
}

/// Outcome of one attempt to deliver queue entries to the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Idle,
    /// The hub has stored at least one entry of the batch.
    Sent,
    /// The hub refused the batch, so its entries must be sent one by one.
    Refused(String),
    /// The hub did not respond, so the batch must be sent again.
    Failed(String),
}

impl Hub {
    /// Opens the queue, and reads the token and the CA certificate. Sends nothing yet.
    ///
    /// # Errors
    /// If the queue cannot be opened, or a file cannot be read.
    pub fn open(config: &HubConfig, folder: &Path, host: &str) -> Result<Self, ConfigError> {
        let what = folder.display();
        let queue = DiskQueue::open(folder, config.queue_mib << 20)
            .map_err(ConfigError::start(format!("{what}: cannot open the queue of the hub")))?;
        let floor = queue.last_start();
        // If the newest queued interval is in the future, it was dated by a wrong clock. New rows
        // cannot repeat it, so there is no floor.
        let floor = if is_wrong_clock(floor, unix_ns() / 1_000_000_000) { 0 } else { floor };
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

    /// Checks the hub's token and CA certificate, and lists their problems.
    pub fn check(config: &HubConfig) -> Vec<ConfigError> {
        let token = token(config).err();
        token.into_iter().chain(tls(config).err()).collect()
    }

    /// Queues the rows of an interval. Rows are left out if an earlier agent has queued the
    /// interval, because the clock may have been set back since. Rows that cannot be written are
    /// counted as dropped.
    pub fn add_rows(&self, start_unix_s: u64, rows: Vec<Body>) -> std::io::Result<()> {
        if start_unix_s <= self.floor {
            self.repeated.fetch_add(rows.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.add(start_unix_s, rows)
    }

    /// Queues entries that belong to no interval, such as events.
    ///
    /// # Errors
    /// If the entries cannot be written. They are then counted as dropped.
    pub fn add_events(&self, events: Vec<Body>) -> std::io::Result<()> {
        self.add(0, events)
    }

    pub(super) fn add(&self, start_unix_s: u64, bodies: Vec<Body>) -> std::io::Result<()> {
        let entry = |body| Entry { sequence: 0, body: Some(body) };
        let added = lock(&self.queue).append(start_unix_s, bodies.into_iter().map(entry).collect());
        self.added.notify_all();
        added
    }

    /// Returns the counters of the queue and of its deliveries.
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

    /// Sends at most `entries_max` queued entries, and removes the entries that the hub has stored.
    pub(super) fn deliver(&self, entries_max: usize) -> Delivery {
        let (queue, gone_through, entries) = {
            let mut queue = lock(&self.queue);
            match queue.peek(entries_max, BATCH_BYTES) {
                Ok(entries) => (queue.id().to_vec(), queue.gone_through(), entries),
                Err(error) => return Delivery::Failed(format!("queue: {error}")),
            }
        };
        let Some(last) = entries.last().map(|entry| entry.sequence) else { return Delivery::Idle };
        let (host, count) = (self.host.clone(), entries.len());
        let sent_unix_ms = Some(unix_ns() / 1_000_000);
        let version = VERSION;
        let batch = EntryBatch { version, host, queue, gone_through, entries, sent_unix_ms };
        match self.link.post::<_, Ack>(BATCHES, &batch, Duration::ZERO) {
            Ok(ack) => {
                // A faulty hub could acknowledge numbers that were never sent.
                let through = ack.through.min(last);
                self.sent.fetch_add(through.saturating_sub(gone_through), Ordering::Relaxed);
                match lock(&self.queue).forget(through) {
                    Ok(()) if through > gone_through => Delivery::Sent,
                    Ok(()) => Delivery::Failed(
                        "the hub stores none of the entries that it receives".to_owned(),
                    ),
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

    /// Waits until an entry is added to the queue, at most for one [`TICK`].
    pub(super) fn wait(&self) {
        let queue = lock(&self.queue);
        let waited = self.added.wait_timeout(queue, TICK);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
