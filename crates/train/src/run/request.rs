//! A request for a training run: configuration, data, starting point and recording.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use schema::{JobConfig, Schedule, ShardingPlan};

use super::ordered::TraceInbox;

/// A request for a training run: the configuration, the data, the starting point and the folder of
/// its results.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub config: JobConfig,
    /// Placement of tables on ranks. The plan's world size is the number of ranks.
    pub plan: ShardingPlan,
    pub train: Arc<data::Dataset>,
    pub train_rows: Range<u64>,
    /// Held-out data and its rows.
    pub evaluation: Option<(Arc<data::Dataset>, Range<u64>)>,
    /// Folder of the run. Checkpoints are written to `checkpoints/` below it.
    pub run_folder: PathBuf,
    /// Number of threads, over all ranks.
    pub threads: usize,
    pub start: Start,
    /// Whether the run may resume under another update rule than the checkpoint's.
    pub rule_change: RuleChange,
    /// Approximate size of the buckets in which dense gradients are summed over ranks, in bytes.
    pub bucket_bytes: usize,
    /// The exchanges that run beside other stages. Results do not depend on it.
    pub schedule: Schedule,
    pub trace: Option<TraceRequest>,
    /// Traces that are ordered while the run trains. They do not combine with `trace`.
    pub orders: TraceInbox,
    /// Flag that ends the run after the current step, with a checkpoint, when it is set on any
    /// rank.
    pub stop: Arc<AtomicBool>,
}

/// The starting point of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The run starts at step 0, with initial weights.
    Fresh,
    /// The run starts at the step of the checkpoint in this folder, `…/step-…`.
    Checkpoint(PathBuf),
}

/// Whether to accept a plan that changes the update rule of a checkpoint's optimizer. Row-wise
/// Adagrad and LAMB depend on how a plan splits columns ([`schema::RowScope`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleChange {
    /// Fails with the error [`crate::Error::OtherRowScope`].
    Refuse,
    /// Converts row-wise Adagrad's states: averages them over merged columns and copies them to
    /// split ones. States of LAMB are kept unchanged.
    Accept,
}

/// A request to record a trace of some steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Output folder for `kineto_rank{r}.json`, and for the last recorded step also
    /// `execution_trace/rank{r}.json`.
    pub folder: PathBuf,
    /// The steps to record, counted from 0.
    pub steps: Range<u64>,
}

/// Opens the device of a rank with the given number of host threads. The function is called on the
/// rank's own thread.
pub trait OpenDevice<B>: Fn(usize) -> Result<B, device::Error> + Sync {}

impl<B, F: Fn(usize) -> Result<B, device::Error> + Sync> OpenDevice<B> for F {}
