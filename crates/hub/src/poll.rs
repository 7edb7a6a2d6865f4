//! The thread that asks Slurm at intervals, and stores what is new.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::batch::{CheckedBatch, QueuedEntry};
use crate::config::SlurmCluster;
use crate::error::Error;
use crate::log::say;
use crate::slurm::{ClusterHistory, ClusterState};
use crate::writer::BatchQueue;

/// Interval at which the thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);

/// The state of the thread that asks Slurm.
#[derive(Clone)]
pub struct SlurmPoll {
    cluster: SlurmCluster,
    batches: BatchQueue,
    queue: Arc<[u8]>,
    next: u64,
    history: ClusterHistory,
}

impl SlurmPoll {
    /// Creates the state, with a queue of entries of its own.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn new(cluster: SlurmCluster, batches: BatchQueue) -> Result<Self, Error> {
        let mut queue = [0; 16];
        getrandom::fill(&mut queue)?;
        let history = ClusterHistory::default();
        Ok(Self { cluster, batches, queue: queue.into(), next: 1, history })
    }

    /// Starts the thread, which ends when `stop` is set.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(mut self, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("slurm".to_owned()).spawn(move || {
            let is_ending = || stop.load(Ordering::SeqCst);
            let mut was_failing = false;
            while !is_ending() {
                let until = Instant::now() + Duration::from_secs(self.cluster.interval_s);
                let result = self.ask();
                if let Err(problem) = &result
                    && !was_failing
                {
                    say(&format!("note: Slurm is not asked: {problem}"));
                }
                was_failing = result.is_err();
                while !is_ending() && Instant::now() < until {
                    thread::sleep(TICK);
                }
            }
        })
    }

    /// Asks Slurm once and stores what is new.
    fn ask(&mut self) -> Result<(), String> {
        let state = ClusterState::ask(self.cluster.folder.as_deref())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut history = self.history.clone();
        let name = &self.cluster.cluster;
        let new = history.report(&state, name, now.as_secs());
        let entry = |(sequence, new): (u64, crate::slurm::ClusterEntry)| {
            let (queue, host) = (Arc::clone(&self.queue), new.host.into());
            QueuedEntry { queue, host, sequence, body: new.body }
        };
        let entries: Vec<QueuedEntry> = (self.next..).zip(new).map(entry).collect();
        let (count, host) = (entries.len() as u64, name.as_str().into());
        if count > 0 {
            let batch = CheckedBatch { entries, host, sent_unix_ms: None, through: 0 };
            self.batches.store_blocking(batch)?;
        }
        // Entries that could not be stored are new again at the next time.
        (self.history, self.next) = (history, self.next + count);
        Ok(())
    }
}
