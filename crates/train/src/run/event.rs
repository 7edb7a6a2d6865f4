//! The reports of a training run: events while it trains, and its outcome.

use std::path::{Path, PathBuf};

use schema::{Figure, Optimizer, RowScope};
use serde::Serialize;

use crate::embedding::stored_tile::CacheUse;
use crate::{Evaluation, RankTiming, TableUse};

/// The statistics of the steps since the last log line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoggedInterval {
    pub step: u64,
    /// Epoch of the last batch.
    pub epoch: u64,
    /// Number of samples trained on since the start of the run.
    pub samples: u64,
    /// Mean loss of the interval.
    pub loss: f64,
    /// Training throughput of the interval, without evaluations and checkpoints.
    pub samples_per_second: f64,
    /// Base learning rate of the dense optimizer times the schedule's factor.
    pub learning_rate: f64,
    /// Share of training time spent waiting for input.
    pub input_wait_share: f64,
    /// Share of the time of steps in which ranks waited for exchanges.
    pub exchange_wait_share: f64,
    /// Mean times of a step of each rank.
    pub timing: Vec<RankTiming>,
}

/// An event of a running job, for the caller to display or record.
#[derive(Clone, Debug)]
pub enum RunEvent<'a> {
    /// The optimizer's update rule is not the one on whole rows, because the plan splits columns,
    /// or it differs from the rule of the checkpoint. This event precedes [`RunEvent::Started`].
    RowScope {
        optimizer: Optimizer,
        /// The columns of a row over which the optimizer works from this point on.
        scope: &'a RowScope,
        /// The previous scope, if it differs.
        before: Option<&'a RowScope>,
    },
    /// A checkpoint newer than the starting point was renamed, because the run does not use it.
    SetAside {
        from: &'a Path,
        to: &'a Path,
    },
    Started {
        step: u64,
        total_steps: u64,
        samples_per_epoch: u64,
    },
    /// One training step is done.
    Stepped {
        step: u64,
        /// Number of samples trained on since the start of the run.
        samples: u64,
    },
    /// A log line is due.
    Interval(&'a LoggedInterval),
    /// An evaluation is in progress.
    Evaluating {
        samples: u64,
        total: u64,
    },
    /// An evaluation is done.
    Evaluated {
        step: u64,
        evaluation: &'a Evaluation,
    },
    /// The changes that training has made to the tables. The figures belong to the checkpoint that
    /// [`RunEvent::Saved`] reports next.
    Tables {
        step: u64,
        tables: &'a [TableUse],
    },
    /// A checkpoint is about to be written.
    Saving,
    /// A checkpoint was written.
    Saved {
        step: u64,
        path: &'a Path,
        bytes: u64,
        seconds: f64,
    },
    /// Trace files were written.
    Traced {
        /// Paths of a Kineto trace and an execution trace per rank.
        paths: &'a [PathBuf],
        steps: u64,
    },
    /// An ordered trace of this number of steps was written, or could not be written.
    Answered {
        path: &'a Path,
        steps: u64,
        problem: Option<String>,
    },
}

/// The checkpoint with the best held-out metric.
#[derive(Clone, Debug, PartialEq)]
pub struct BestCheckpoint {
    pub step: u64,
    pub by: Figure,
    pub figure: f64,
    /// All metrics of the best evaluation, or `None` if an earlier session of the run made it.
    pub evaluation: Option<Evaluation>,
    pub folder: PathBuf,
}

/// The outcome of a run that ended without an error.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    pub step: u64,
    /// Number of samples trained on, including earlier sessions of the run.
    pub samples: u64,
    /// Training throughput of this session, without evaluations and checkpoints.
    pub samples_per_second: f64,
    /// Share of training time spent waiting for input.
    pub input_wait_share: f64,
    /// Mean times of a step of each rank in this session.
    pub timing: Vec<RankTiming>,
    /// Mean loss since the last log line, or of the last logged interval if no step followed it.
    pub loss: f64,
    pub evaluation: Option<Evaluation>,
    /// The best checkpoint, or `None` unless the run keeps it.
    pub best: Option<BestCheckpoint>,
    /// Whether the run ended early because evaluations stopped improving.
    pub out_of_patience: bool,
    pub checkpoint: Option<PathBuf>,
    /// Use of the caches of tables in files in this session, up to the last checkpoint.
    pub caches: Vec<CacheUse>,
    /// Number of ids beyond the length of their table's sequences in this session. These ids were
    /// not looked up.
    pub ids_left_out: u64,
    /// Out-of-range ids in the first epoch of this session, for the columns that count them.
    pub ids_outside: Vec<data::IdsOutside>,
    /// Whether [`RunRequest::stop`] ended the run.
    pub interrupted: bool,
    /// Wall time of this session.
    pub seconds: f64,
}
