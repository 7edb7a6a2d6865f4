//! The thread that asks Slurm at intervals, and stores what is new.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::accounting::{AccountingHistory, EndedAttempt, OVERLAP_S};
use crate::batch::{CheckedBatch, QueuedEntry};
use crate::config::SlurmCluster;
use crate::error::Error;
use crate::log::say;
use crate::runs;
use crate::slurm::{ClusterEntry, ClusterHistory, ClusterState};
use crate::store::StoreFolder;
use crate::writer::BatchQueue;

/// Interval at which the thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);

/// Number of questions to the controller for each one to the accounting, whose database is slower.
const ACCOUNTING_POLLS: u64 = 5;
/// What a failure of the controller, and of the accounting, means.
const NOTES: [&str; 2] = [
    "Slurm is not asked",
    "Slurm's accounting is not asked, so requeues and jobs that end while the hub is down are not \
     known",
];

/// The state of the thread that asks Slurm.
#[derive(Clone)]
pub struct SlurmPoll {
    cluster: SlurmCluster,
    batches: BatchQueue,
    queue: Arc<[u8]>,
    next: u64,
    history: ClusterHistory,
    folder: Arc<StoreFolder>,
    /// What is known from the accounting; `None` before it is first asked.
    accounting: Option<AccountingHistory>,
    /// Number of polls since the start.
    polls: u64,
}

impl SlurmPoll {
    /// Creates the state, with a queue of entries of its own.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn new(
        cluster: SlurmCluster,
        batches: BatchQueue,
        folder: Arc<StoreFolder>,
    ) -> Result<Self, Error> {
        let mut queue = [0; 16];
        getrandom::fill(&mut queue)?;
        let (queue, history) = (queue.into(), ClusterHistory::default());
        Ok(Self { cluster, batches, queue, next: 1, history, folder, accounting: None, polls: 0 })
    }

    /// Starts the thread, which ends when `stop` is set.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(mut self, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("slurm".to_owned()).spawn(move || {
            let is_ending = || stop.load(Ordering::SeqCst);
            // Whether the controller and the accounting failed at the last question.
            let mut were_failing = [false; 2];
            while !is_ending() {
                let until = Instant::now() + Duration::from_secs(self.cluster.interval_s);
                let mut results = vec![self.ask()];
                let has_accounting = !self.cluster.accounting.is_zero();
                if has_accounting && self.polls.is_multiple_of(ACCOUNTING_POLLS) {
                    results.push(self.ask_accounting());
                }
                self.polls += 1;
                for ((result, was_failing), note) in
                    results.iter().zip(&mut were_failing).zip(NOTES)
                {
                    if let Err(problem) = result
                        && !*was_failing
                    {
                        say(&format!("note: {note}: {problem}"));
                    }
                    *was_failing = result.is_err();
                }
                while !is_ending() && Instant::now() < until {
                    thread::sleep(TICK);
                }
            }
        })
    }

    /// Asks the controller once and stores what is new.
    fn ask(&mut self) -> Result<(), String> {
        let state = ClusterState::ask(self.cluster.folder.as_deref())?;
        let mut history = self.history.clone();
        let new = history.report(&state, &self.cluster.cluster, now_unix_s());
        self.store(&new)?;
        if let Some(accounting) = &mut self.accounting {
            accounting.add_reported(&new);
        }
        self.history = history;
        Ok(())
    }

    /// Asks the accounting once and stores the ends of jobs that are new.
    fn ask_accounting(&mut self) -> Result<(), String> {
        let (now, first_s) = (now_unix_s(), self.cluster.accounting.as_secs());
        let mut history = match &self.accounting {
            Some(history) => history.clone(),
            None => {
                let since = now.saturating_sub(first_s);
                let runs = runs::read(&self.folder, &(since..now + 1));
                AccountingHistory::from_runs(&runs.map_err(|error| error.to_string())?)
            }
        };
        let span_s = history.span_s(now, first_s);
        let attempts = EndedAttempt::ask(self.cluster.folder.as_deref(), span_s)?;
        let new = history.report(attempts, &self.cluster.cluster, now);
        self.store(&new)?;
        history.forget_before(now.saturating_sub(span_s + OVERLAP_S));
        self.accounting = Some(history);
        Ok(())
    }

    /// Stores entries. Those that could not be stored are new again at the next time.
    fn store(&mut self, new: &[ClusterEntry]) -> Result<(), String> {
        let entry = |(sequence, new): (u64, &ClusterEntry)| {
            let (queue, host) = (Arc::clone(&self.queue), new.host.as_str().into());
            QueuedEntry { queue, host, sequence, body: new.body.clone() }
        };
        let entries: Vec<QueuedEntry> = (self.next..).zip(new).map(entry).collect();
        let (count, host) = (entries.len() as u64, self.cluster.cluster.as_str().into());
        if count > 0 {
            let batch = CheckedBatch { entries, host, sent_unix_ms: None, through: 0 };
            self.batches.store_blocking(batch)?;
        }
        self.next += count;
        Ok(())
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
