//! The thread that commits batches to the store. Batches that arrive while a commit is written
//! share the next one, so that a thousand agents do not cause a thousand files.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::batch::{CheckedBatch, QueuedEntry};
use crate::error::Error;
use crate::log::say;
use crate::store::ingest::{HostProblem, IngestTally, RowStore};

/// Largest number of entries of one commit.
const COMMIT_ENTRIES: usize = 200_000;

/// A batch with the channel for its outcome, which is the reason of a failure.
struct PendingBatch {
    batch: CheckedBatch,
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
    pub fn start(store: RowStore, pause: Duration) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (sender, receiver) = channel();
        let builder = thread::Builder::new().name("commits".to_owned());
        let thread = builder.spawn(move || commit_batches(store, &receiver, pause))?;
        Ok((Self { sender: Arc::new(Mutex::new(sender)) }, thread))
    }

    /// Waits until all entries of a batch are on disk.
    ///
    /// # Errors
    /// The reason if they could not be stored. The batch can be sent again.
    pub async fn store(&self, batch: CheckedBatch) -> Result<(), String> {
        let (outcome, answer) = oneshot::channel();
        let waiting = PendingBatch { batch, outcome };
        let sent = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(waiting);
        let ended = || "the hub is ending".to_owned();
        sent.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn commit_batches(mut store: RowStore, receiver: &Receiver<PendingBatch>, pause: Duration) {
    let mut reported = BTreeSet::new();
    let mut was_failing = false;
    let mut began = Instant::now().checked_sub(pause);
    while let Ok(first) = receiver.recv() {
        if let Some(began) = began {
            thread::sleep(pause.saturating_sub(began.elapsed()));
        }
        began = Some(Instant::now());
        let (mut entries, mut outcomes): (Vec<QueuedEntry>, _) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(PendingBatch { batch, outcome }) = next {
            entries.extend(batch.entries);
            outcomes.push(outcome);
            next = if entries.len() < COMMIT_ENTRIES { receiver.try_recv().ok() } else { None };
        }
        let result = store.append(entries);
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
    }
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
