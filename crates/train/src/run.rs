//! A training run from its start, or a checkpoint, to its end: options and reported events.
//!
//! Rank 0 runs on the calling thread and leads: it reads batches and commands every rank. Knows no
//! terminal: progress goes to the caller as [`RunEvent`]s.

mod agreement;
mod command;
mod feed;
pub(crate) mod lead;
pub(crate) mod start;
mod worker;

pub use agreement::{check_shared, host};
pub use lead::{feature_plan, total_steps};
pub use worker::run_info;

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::Backend;
use schema::{Figure, JobConfig, Optimizer, RowScope, ShardingPlan};
use serde::Serialize;

use crate::{Error, Evaluation, TableUse};

use feed::Feed;
use worker::RankWorker;

/// How often, and how long after each try, a run folder's lock is awaited.
const LOCK_TRIES: u32 = 10;
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// What is to be trained, on what, and where its results go.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub config: JobConfig,
    /// Who holds what; its world size is the number of ranks.
    pub plan: ShardingPlan,
    pub train: Arc<data::Dataset>,
    /// The rows of `train` to train on.
    pub train_rows: Range<u64>,
    /// Held-out data and its rows.
    pub evaluation: Option<(Arc<data::Dataset>, Range<u64>)>,
    /// Checkpoints go to `checkpoints/` below this folder.
    pub run_folder: PathBuf,
    /// Threads over all ranks.
    pub threads: usize,
    /// Where the run begins.
    pub start: Start,
    /// Whether it may go on under another rule than the checkpoint's.
    pub rule_change: RuleChange,
    /// Bytes of the buckets in which dense gradients go to other ranks, about.
    pub bucket_bytes: usize,
    pub trace: Option<TraceRequest>,
    /// Set to end the run after the step in progress, with a checkpoint; on any rank.
    pub stop: Arc<AtomicBool>,
}

/// Where a run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At step 0, with initial weights.
    Fresh,
    /// At this checkpoint's step: the folder `…/step-…`.
    Checkpoint(PathBuf),
}

/// What happens where a plan makes another rule of the tables' optimizer than a checkpoint's state
/// was taken under: row-wise Adagrad and LAMB over other columns of a row ([`schema::RowScope`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleChange {
    /// [`Error::OtherRowScope`].
    Refuse,
    /// Row-wise Adagrad's states are averaged over merged columns and handed to each part of split
    /// ones; those of LAMB stay as they are.
    Accept,
}

/// A recording of some steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Where the files go: `kineto_rank{r}.json`, and of the last step
    /// `execution_trace/rank{r}.json`.
    pub folder: PathBuf,
    /// The steps, counted from 0.
    pub steps: Range<u64>,
}

/// What happened since the last log line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoggedInterval {
    pub step: u64,
    /// Epoch of the last batch.
    pub epoch: u64,
    /// Samples trained on since the beginning.
    pub samples: u64,
    /// Mean loss of the interval.
    pub loss: f64,
    /// Samples per second of the interval, evaluations and checkpoints left out.
    pub samples_per_second: f64,
    /// Base learning rate of the dense optimizer times the schedule's factor.
    pub learning_rate: f64,
    /// Share of the time spent waiting for input.
    pub input_wait_share: f64,
}

/// A report of a run in progress.
#[derive(Clone, Debug)]
pub enum RunEvent<'a> {
    /// The tables' optimizer looks at rows, and columns are split: another rule than on whole rows.
    /// Or the rule changes from here on. Comes before [`RunEvent::Started`].
    RowScope {
        optimizer: Optimizer,
        /// Over which columns of a row it works from here on.
        scope: &'a RowScope,
        /// The same before, where it was another.
        before: Option<&'a RowScope>,
    },
    /// A checkpoint newer than the one the run starts at was renamed: the run does not use it.
    SetAside {
        /// Its folder until now.
        from: &'a Path,
        /// Its folder from now on.
        to: &'a Path,
    },
    Started {
        step: u64,
        /// Steps at the end of the run.
        total_steps: u64,
        /// Samples of one epoch.
        samples_per_epoch: u64,
    },
    /// One training step is done.
    Stepped {
        step: u64,
        /// Samples trained on since the beginning.
        samples: u64,
    },
    /// A log line is due.
    Interval(&'a LoggedInterval),
    /// An evaluation goes on.
    Evaluating { samples: u64, total: u64 },
    /// An evaluation is done.
    Evaluated { step: u64, evaluation: &'a Evaluation },
    /// What training has made of the tables, as of the checkpoint that [`RunEvent::Saved`] reports
    /// next.
    Tables {
        step: u64,
        /// Each table of the model.
        tables: &'a [TableUse],
    },
    /// A checkpoint is about to be written.
    Saving,
    /// A checkpoint was written.
    Saved { step: u64, path: &'a Path, bytes: u64, seconds: f64 },
    /// Trace files were written.
    Traced {
        /// One Kineto trace and one execution trace per rank.
        paths: &'a [PathBuf],
        /// Steps that they show.
        steps: u64,
    },
}

/// The checkpoint with the best held-out figure.
#[derive(Clone, Debug, PartialEq)]
pub struct BestCheckpoint {
    pub step: u64,
    pub by: Figure,
    pub figure: f64,
    pub folder: PathBuf,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    pub step: u64,
    /// Samples trained on, over all sessions of the run.
    pub samples: u64,
    /// Samples per second of this session, evaluations and checkpoints left out.
    pub samples_per_second: f64,
    /// Share of that time spent waiting for input.
    pub input_wait_share: f64,
    /// Mean loss since the last multiple of `log_every` steps, or of the last such interval.
    pub loss: f64,
    pub evaluation: Option<Evaluation>,
    /// The best one, where the run keeps its checkpoint.
    pub best: Option<BestCheckpoint>,
    /// Whether it ended before its last step because evaluations got no better.
    pub out_of_patience: bool,
    pub checkpoint: Option<PathBuf>,
    /// Ids of this session's training samples beyond the length of their table's sequences, which
    /// were not looked up.
    pub ids_left_out: u64,
    /// Ids outside their tables in the first epoch of this session, per column where they are
    /// counted.
    pub ids_outside: Vec<data::IdsOutside>,
    /// Whether [`RunRequest::stop`] ended the run.
    pub interrupted: bool,
    /// Wall time of this session.
    pub seconds: f64,
}

/// Trains until the configured end, or until [`RunRequest::stop`] is set.
///
/// # Errors
/// [`Error::Diverged`] as soon as the loss, or a value to be saved, is no finite number; whatever
/// else kept the run from going on. Checkpoints written so far stay.
pub fn run<B: Backend>(
    request: &RunRequest,
    open: impl OpenDevice<B>,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, Error> {
    PreparedRun::begin(request.clone())?.run(open, observe)
}

/// Opens the device of a rank, on the rank's own thread, with so many threads of the host.
pub trait OpenDevice<B>: Fn(usize) -> Result<B, device::Error> + Sync {}

impl<B, F: Fn(usize) -> Result<B, device::Error> + Sync> OpenDevice<B> for F {}

/// A run whose training batches are read and put together from now on: whatever else it needs can
/// be got ready meanwhile. It owns its request, so that the batches are those of the run that
/// follows.
pub struct PreparedRun {
    request: RunRequest,
    start: start::StartState,
    batches: Option<data::Loader>,
}

impl PreparedRun {
    /// Begins where `request` starts.
    ///
    /// # Errors
    /// Those of a checkpoint that cannot be resumed, and of data that does not fit the model.
    pub fn begin(request: RunRequest) -> Result<Self, Error> {
        let start = start::StartState::read(&request)?;
        let batches = lead::batches(&request, &start)?;
        Ok(Self { request, start, batches })
    }

    /// The run that was asked for.
    #[must_use]
    pub fn request(&self) -> &RunRequest {
        &self.request
    }

    /// Evaluates on this data and these rows, in place of those of the request.
    #[must_use]
    pub fn with_evaluation(mut self, evaluation: Option<(Arc<data::Dataset>, Range<u64>)>) -> Self {
        self.request.evaluation = evaluation;
        self
    }

    /// Ends the run when `stop` is set, in place of the request's.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.request.stop = stop;
        self
    }

    /// Whether it is known that the run goes on with the rows it began with: false for a checkpoint
    /// that was trained but does not say on what.
    #[must_use]
    pub fn compares_rows(&self) -> bool {
        let Some(checkpoint) = &self.start.checkpoint else { return true };
        self.start.progress.is_none() || checkpoint.manifest().data.training.is_some()
    }

    /// [`run`] on these batches, as rank 0 of a job whose ranks are processes.
    ///
    /// # Errors
    /// Those of [`run`]; [`Error::OtherRequest`] and [`Error::NotShared`].
    pub fn lead<B: Backend>(
        self,
        open: impl OpenDevice<B>,
        processes: Processes,
        observe: &mut dyn FnMut(RunEvent<'_>),
    ) -> Result<RunOutcome, Error> {
        let _lock = self.check()?;
        let Self { request, start, batches } = self;
        let Processes { mut comm, timeout, native } = processes;
        agreement::agree::<B>(&mut comm, &request)?;
        let worker = RankWorker::new(&request, &start, comm, request.threads, &open)?;
        let worker = worker.waiting(timeout).summing(native);
        lead::lead(&request, &start, worker, batches, observe)
    }

    /// Takes the run folder and refuses what would fail later. The lock is held until the run ends,
    /// however it ends: the operating system releases a dead process's locks.
    fn check(&self) -> Result<File, Error> {
        let Self { request, start, .. } = self;
        let lock = lock(&request.run_folder)?;
        if let Some(checkpoint) = &start.checkpoint {
            start::check_same_rows(checkpoint, request, start::RunRows::HeldOut)?;
        }
        check_trace(request, start)?;
        lead::check_evaluation(request)?;
        check_folders(request, start)?;
        Ok(lock)
    }

    /// [`run`] on these batches. Checkpoints of the run folder that are newer than the one it
    /// starts at are set aside once nothing more can refuse the run.
    ///
    /// # Errors
    /// Those of [`run`].
    pub fn run<B: Backend>(
        self,
        open: impl OpenDevice<B>,
        observe: &mut dyn FnMut(RunEvent<'_>),
    ) -> Result<RunOutcome, Error> {
        let _lock = self.check()?;
        let Self { request, start, batches } = self;
        let mut ends = comm::world(request.plan.world_size());
        let threads = (request.threads / ends.len()).max(1);
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
            let led = worker(own).and_then(|worker| {
                lead::lead(request, start, worker.handing(handed), batches, observe)
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

/// The other ranks of a run whose ranks are processes.
pub struct Processes {
    /// This rank's end of the communicator of all ranks, which waits as long as the first step may
    /// take.
    pub comm: comm::Communicator,
    /// How long messages are waited for after the first step.
    pub timeout: Duration,
    /// Whether the transport sums dense gradients, where it can, in an order of its own.
    pub native: bool,
}

/// Takes part in a run that another process leads with [`PreparedRun::lead`]: reads the same data,
/// computes this rank's share, and writes its parts of checkpoints. Whether the run ended because
/// [`RunRequest::stop`] of some rank was set.
///
/// # Errors
/// Those of [`run`]; [`Error::OtherRequest`] and [`Error::NotShared`].
pub fn follow<B: Backend>(
    request: &RunRequest,
    open: impl OpenDevice<B>,
    processes: Processes,
) -> Result<bool, Error> {
    let Processes { mut comm, timeout, native } = processes;
    let start = start::StartState::read(request)?;
    agreement::agree::<B>(&mut comm, request)?;
    let feed = Feed::Read(Box::new(feed::FollowingRank::new(request, &start, comm.rank())?));
    let worker = RankWorker::new(request, &start, comm, request.threads, &open)?;
    worker.waiting(timeout).summing(native).follow(feed)
}

/// Refuses a window of steps to record that the run has not, rather than to leave an empty folder.
fn check_trace(request: &RunRequest, start: &start::StartState) -> Result<(), Error> {
    let Some(TraceRequest { steps: asked, .. }) = &request.trace else { return Ok(()) };
    let left = start.step..lead::steps_of(request).max(start.step);
    // A run without steps says so itself.
    if left.is_empty() || asked.start.max(left.start) < asked.end.min(left.end) {
        return Ok(());
    }
    Err(Error::NothingToTrace { left, asked: asked.clone() })
}

/// Refuses folders that cannot be written now rather than after hours of training.
fn check_folders(request: &RunRequest, start: &start::StartState) -> Result<(), Error> {
    if let Some(TraceRequest { folder, .. }) = &request.trace {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let tables = &request.config.model.tables;
    crate::checkpoint::CheckpointWriter::begin(&request.run_folder, start.step, tables).map(drop)
}

/// Takes the run folder for this run alone: two runs would clear each other's checkpoints away.
/// Waits a moment: a program that is being started holds a copy of every open file, and with it
/// the lock of a run that has just ended.
fn lock(folder: &Path) -> Result<File, Error> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let path = folder.join("lock");
    // A link that somebody planted is neither cut nor filled: at worst the file it leads to is
    // locked.
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

/// The error that explains the other: a rank that failed, rather than a rank that was left alone.
fn explaining<T>(result: Result<T, Error>, other: Error) -> Error {
    match result {
        Err(error) if !matches!(error, Error::Communication(comm::Error::PeerLeft { .. })) => error,
        _ => other,
    }
}
