//! A training run from its start, or from a checkpoint, to its end.
//!
//! Rank 0 runs on the calling thread and coordinates the others: it reads batches and sends
//! commands to every rank. Progress is reported to the caller as [`RunEvent`]s.

mod agreement;
mod command;
mod coordinator;
mod event;
mod feed;
pub(crate) mod loaders;
mod ordered;
mod request;
mod restore;
mod sharing;
pub(crate) mod start;
mod worker;

pub use agreement::{check_shared, host};
pub use event::{BestCheckpoint, LoggedInterval, RunEvent, RunOutcome};
pub use loaders::{feature_plan, total_steps};
pub use ordered::{OrderedTrace, TraceExtent, TraceInbox};
pub use request::{OpenDevice, RuleChange, RunRequest, Start, TraceRequest};
pub use worker::run_info;

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::Backend;

use crate::Error;

use coordinator::RunInput;
use feed::Feed;
use sharing::RowSharer;
use worker::RankWorker;

/// Number of attempts to lock a run folder, and the pause between them.
const LOCK_TRIES: u32 = 10;
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// Trains until the configured end, or until [`RunRequest::stop`] is set.
///
/// # Errors
/// [`Error::Diverged`] as soon as the loss or a value to be saved is not finite, and any other
/// error that stops the run. Checkpoints written so far are kept.
pub fn run<B: Backend>(
    request: &RunRequest,
    open: impl OpenDevice<B>,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, Error> {
    PreparedRun::begin(request.clone())?.run(open, observe)
}

/// A run whose loader already reads training batches in the background, while the caller prepares
/// the rest. The prepared run owns its request, so that the batches always belong to the run that
/// follows.
pub struct PreparedRun {
    request: RunRequest,
    start: start::StartState,
    batches: Option<data::Loader>,
}

impl PreparedRun {
    /// Opens the starting point of `request` and starts the loader there.
    ///
    /// # Errors
    /// Returns an error if the run cannot resume from the checkpoint, or the data does not fit the
    /// model.
    pub fn begin(request: RunRequest) -> Result<Self, Error> {
        let start = start::StartState::read(&request)?;
        let batches = loaders::training_batches(&request, &start, None)?;
        Ok(Self { request, start, batches })
    }

    /// Opens the starting point of `request` for [`Self::lead`]. Its loader starts with those of
    /// the other ranks, because they share the reading.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::begin`].
    pub fn begin_processes(request: RunRequest) -> Result<Self, Error> {
        let start = start::StartState::read(&request)?;
        loaders::check_training(&request, &start)?;
        Ok(Self { request, start, batches: None })
    }

    /// Returns the request that this run was prepared for.
    #[must_use]
    pub fn request(&self) -> &RunRequest {
        &self.request
    }

    /// Replaces the evaluation data and rows of the request.
    #[must_use]
    pub fn with_evaluation(mut self, evaluation: Option<(Arc<data::Dataset>, Range<u64>)>) -> Self {
        self.request.evaluation = evaluation;
        self
    }

    /// Replaces the stop flag of the request.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.request.stop = stop;
        self
    }

    /// Returns whether the run can verify that it resumes on the rows with which it began. Returns
    /// false if the checkpoint was trained but has no fingerprint of its rows.
    #[must_use]
    pub fn compares_rows(&self) -> bool {
        let Some(checkpoint) = &self.start.checkpoint else { return true };
        self.start.progress.is_none() || checkpoint.manifest().data.training.is_some()
    }

    /// Trains as rank 0 of a job whose ranks are processes, see [`run`] and
    /// [`Self::begin_processes`].
    ///
    /// # Errors
    /// Returns the errors of [`run`], [`Error::OtherRequest`] and [`Error::NotShared`].
    pub fn lead<B: Backend>(
        self,
        open: impl OpenDevice<B>,
        processes: Processes,
        observe: &mut dyn FnMut(RunEvent<'_>),
    ) -> Result<RunOutcome, Error> {
        let _lock = self.check()?;
        let Self { request, start, .. } = self;
        let Processes { mut comm, timeout, native } = processes;
        agreement::agree::<B>(&mut comm, &request)?;
        let sharer = RowSharer::new(&comm, timeout);
        let failure = sharer.failure();
        let lead = || {
            let batches = loaders::training_batches(&request, &start, sharer.share())?;
            let input = RunInput { batches, sharer: Some(sharer) };
            let worker = RankWorker::new(&request, &start, comm, request.threads, &open)?;
            let worker = worker.waiting(timeout).summing(native);
            coordinator::lead(&request, &start, worker, input, observe)
        };
        lead().map_err(|error| sharing::explain(error, &failure))
    }

    /// Locks the run folder and detects errors that would otherwise occur later. The lock is held
    /// until the run ends. The operating system releases the locks of a process that dies.
    fn check(&self) -> Result<File, Error> {
        let Self { request, start, .. } = self;
        let lock = lock(&request.run_folder)?;
        if let Some(checkpoint) = &start.checkpoint {
            start::check_same_rows(checkpoint, request, start::RunRows::HeldOut)?;
        }
        check_trace(request, start)?;
        loaders::check_evaluation(request)?;
        check_folders(request, start)?;
        Ok(lock)
    }

    /// Trains with one thread per rank, see [`run`]. Checkpoints of the run folder that are newer
    /// than the starting point are set aside once all checks have passed.
    ///
    /// # Errors
    /// Returns the same errors as [`run`].
    pub fn run<B: Backend>(
        self,
        open: impl OpenDevice<B>,
        observe: &mut dyn FnMut(RunEvent<'_>),
    ) -> Result<RunOutcome, Error> {
        let _lock = self.check()?;
        let Self { request, start, batches } = self;
        let mut ends = comm::world(request.plan.world_size());
        let threads = (request.threads / ends.len()).max(1);
        // Rank 0 runs on this thread, because it calls `observe`, which belongs to the caller.
        let own = ends.remove(0);
        std::thread::scope(|scope| {
            let (request, start, open) = (&request, &start, &open);
            let worker = |end| RankWorker::new(request, start, end, threads, open);
            let mut handed = Vec::new();
            let follow = |end| {
                let (hand, batches) = mpsc::channel();
                handed.push(hand);
                scope.spawn(move || worker(end)?.follow(Feed::Handed(batches)))
            };
            let followers: Vec<_> = ends.into_iter().map(follow).collect();
            let input = RunInput { batches, sharer: None };
            let led = worker(own).and_then(|worker| {
                coordinator::lead(request, start, worker.handing(handed), input, observe)
            });
            let mut result = led;
            for follower in followers {
                match follower.join() {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => result = Err(explaining(result, error)),
                    Err(payload) => std::panic::resume_unwind(payload),
                }
            }
            result
        })
    }
}

/// The communicator of a run whose ranks are processes, and how to use it.
pub struct Processes {
    /// This rank's communicator. The communicator's timeout must allow for the first step, which
    /// takes longest.
    pub comm: comm::Communicator,
    /// Timeout of messages after the first step.
    pub timeout: Duration,
    /// Whether the transport may sum dense gradients itself, in an order that it chooses.
    pub native: bool,
}

/// Takes part in a run that another process coordinates with [`PreparedRun::lead`]: reads a part of
/// the data, trains this rank's samples, and writes its parts of checkpoints. Returns whether the
/// run ended because [`RunRequest::stop`] was set on some rank.
///
/// # Errors
/// Returns the errors of [`run`], [`Error::OtherRequest`] and [`Error::NotShared`].
pub fn follow<B: Backend>(
    request: &RunRequest,
    open: impl OpenDevice<B>,
    processes: Processes,
) -> Result<bool, Error> {
    let Processes { mut comm, timeout, native } = processes;
    let start = start::StartState::read(request)?;
    agreement::agree::<B>(&mut comm, request)?;
    let sharer = RowSharer::new(&comm, timeout);
    let failure = sharer.failure();
    let follow = || {
        let reader = feed::FollowingRank::new(request, &start, comm.rank(), sharer)?;
        let feed = Feed::Read(Box::new(reader));
        let worker = RankWorker::new(request, &start, comm, request.threads, &open)?;
        worker.waiting(timeout).summing(native).follow(feed)
    };
    follow().map_err(|error| sharing::explain(error, &failure))
}

/// Fails if the run has none of the steps to record, rather than leaving an empty trace folder.
fn check_trace(request: &RunRequest, start: &start::StartState) -> Result<(), Error> {
    let Some(TraceRequest { steps: asked, .. }) = &request.trace else { return Ok(()) };
    let left = start.step..loaders::total_run_steps(request).max(start.step);
    // If the run has no steps left, the run reports that itself.
    if left.is_empty() || asked.start.max(left.start) < asked.end.min(left.end) {
        return Ok(());
    }
    Err(Error::NothingToTrace { left, asked: asked.clone() })
}

/// Refuses folders that cannot be written, before hours of training are spent.
fn check_folders(request: &RunRequest, start: &start::StartState) -> Result<(), Error> {
    if let Some(TraceRequest { folder, .. }) = &request.trace {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let tables = &request.config.model.tables;
    crate::checkpoint::CheckpointWriter::begin(&request.run_folder, start.step, tables).map(drop)
}

/// Locks the run folder for this run alone, because two runs would delete each other's checkpoints.
/// Retries briefly, because a process between fork and exec holds a copy of every open file, and
/// with it the lock of a run that has just ended.
fn lock(folder: &Path) -> Result<File, Error> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let path = folder.join("lock");
    // The lock file is neither truncated nor written. If an attacker planted a link here, the only
    // harm is that its target is locked.
    let file = match File::create_new(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(&path)
        }
        created => created,
    };
    let file = file.map_err(Error::io("create", &path))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
        }
    }
    Err(Error::RunBusy { path: folder.to_owned() })
}

/// Picks the root cause of two errors. An error of a rank that failed is preferred to the error of
/// a rank whose peer left.
fn explaining<T>(result: Result<T, Error>, other: Error) -> Error {
    match result {
        Err(error)
            if !matches!(error.cause(), Error::Communication(comm::Error::PeerLeft { .. })) =>
        {
            error
        }
        _ => other,
    }
}
