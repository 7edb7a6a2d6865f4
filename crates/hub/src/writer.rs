//! The thread that commits batches to the store. Batches that arrive while a commit is written
//! share the next one, so that a thousand agents do not cause a thousand files.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use crate::batch::{CheckedBatch, QueuedEntry};
use crate::error::Error;
use crate::log::say;
use crate::metrics::HubCounters;
use crate::problems::ProblemLog;
use crate::store::ingest::{HostProblem, IngestTally, RowStore};

/// Time without batches after which the events of problems that are due are written.
const PROBLEMS_WAIT: Duration = Duration::from_secs(10);
/// Largest number of entries of one commit.
const COMMIT_ENTRIES: usize = 200_000;

/// A batch with the channel for its outcome, which is the reason of a failure.
struct PendingBatch {
    batch: CheckedBatch,
    received_unix_ms: u64,
    outcome: oneshot::Sender<Result<(), String>>,
}

/// The sender of batches to the writer thread.
#[derive(Clone)]
pub struct BatchQueue {
    sender: Arc<Mutex<Sender<PendingBatch>>>,
}

impl BatchQueue {
    /// Starts the writer thread. The thread ends when all queues are dropped and all batches are
    /// committed.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(
        store: RowStore,
        problems: ProblemLog,
        counters: Arc<HubCounters>,
        pause: Duration,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (sender, receiver) = channel();
        let builder = thread::Builder::new().name("commits".to_owned());
        let thread =
            builder.spawn(move || commit_batches(store, problems, &counters, &receiver, pause))?;
        Ok((Self { sender: Arc::new(Mutex::new(sender)) }, thread))
    }

    /// Waits until all entries of a batch are on disk.
    ///
    /// # Errors
    /// The reason if they could not be stored. The batch can be sent again.
    pub async fn store(&self, batch: CheckedBatch) -> Result<(), String> {
        self.send(batch)?.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Like [`Self::store`], for threads without an async runtime.
    ///
    /// # Errors
    /// The reason if the entries could not be stored.
    pub fn store_blocking(&self, batch: CheckedBatch) -> Result<(), String> {
        self.send(batch)?.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Hands a batch to the writer thread. Returns the channel of its outcome.
    fn send(&self, batch: CheckedBatch) -> Result<oneshot::Receiver<Result<(), String>>, String> {
        let (outcome, answer) = oneshot::channel();
        let waiting = PendingBatch { batch, received_unix_ms: unix_ms(), outcome };
        let sent = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(waiting);
        sent.map_err(|_| ended())?;
        Ok(answer)
    }
}

fn ended() -> String {
    "the hub is ending".to_owned()
}

fn commit_batches(
    mut store: RowStore,
    mut problems: ProblemLog,
    counters: &HubCounters,
    receiver: &Receiver<PendingBatch>,
    pause: Duration,
) {
    let mut reported = BTreeSet::new();
    let mut was_failing = false;
    let mut began = Instant::now().checked_sub(pause);
    loop {
        let first = match receiver.recv_timeout(PROBLEMS_WAIT) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                write_problems(&mut store, &mut problems);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Some(began) = began {
            thread::sleep(pause.saturating_sub(began.elapsed()));
        }
        began = Some(Instant::now());
        let (mut entries, mut outcomes): (Vec<QueuedEntry>, _) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(PendingBatch { batch, received_unix_ms, outcome }) = next {
            if let Some(sent_unix_ms) = batch.sent_unix_ms {
                let took_s = (received_unix_ms as f64 - sent_unix_ms as f64) * 1e-3;
                problems.add_batch(&batch.host, took_s);
            }
            entries.extend(batch.entries);
            outcomes.push(outcome);
            next = if entries.len() < COMMIT_ENTRIES { receiver.try_recv().ok() } else { None };
        }
        let result = store.append(entries);
        counters.add_commit(result.as_ref().ok());
        let answer = match &result {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        for outcome in outcomes {
            // The agent may have closed its connection. It sends the batch again.
            let _ = outcome.send(answer.clone());
        }
        report(&result, &mut reported, was_failing);
        was_failing = result.is_err();
        if let Ok(tally) = &result {
            problems.add(&tally.problems);
            write_problems(&mut store, &mut problems);
        }
    }
}

/// Stores the events of problems that are due. If the disk is full, they stay due.
fn write_problems(store: &mut RowStore, problems: &mut ProblemLog) {
    let now = Instant::now();
    let events = problems.due(now, unix_ms());
    if !events.is_empty() && store.append(events).is_ok() {
        problems.confirm(now);
    }
}

/// Returns the hub's time in milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Prints the first error of a series, and each problem of a host once.
fn report(
    result: &Result<IngestTally, Error>,
    reported: &mut BTreeSet<(Arc<str>, HostProblem)>,
    was_failing: bool,
) {
    let tally = match result {
        Ok(tally) => tally,
        Err(error) => {
            if !was_failing {
                say(&format!("error: rows are not stored: {error}"));
            }
            return;
        }
    };
    if was_failing {
        say("rows are stored again");
    }
    for ((host, problem), count) in &tally.problems {
        let words = match problem {
            HostProblem::DoubledRows => {
                "repeat an interval of another row and are left out: do two agents run there?"
            }
            HostProblem::FutureRows => "begin in the future: is its clock right?",
            HostProblem::ExpiredRows => "are older than such rows are kept, and are left out",
            HostProblem::RepeatedRows | HostProblem::LateRows | HostProblem::Clock => continue,
        };
        if reported.insert((Arc::clone(host), *problem)) {
            say(&format!("note: host {host}: {} rows {words}", count.rows));
        }
    }
}
