//! What rank 0 tells every rank to do next. What comes of it is what the worker's methods return.

use std::sync::Arc;

use schema::Batch;

use crate::{Step, checkpoint};

/// The next thing every rank does.
#[derive(Clone)]
pub enum Command {
    /// Nothing: once every rank has answered, all of them hold their weights.
    Begin,
    /// One training step.
    Train(TrainStep),
    /// Forward only.
    Evaluate {
        /// The batch of all ranks; each takes its share.
        batch: Arc<Batch>,
    },
    /// Write parameters into a checkpoint that rank 0 commits.
    Save {
        /// The checkpoint begun.
        writer: Arc<checkpoint::Writer>,
        /// A batch that the parameters must give a finite loss on.
        probe: Option<Arc<Batch>>,
    },
    /// Write what was recorded.
    WriteTrace,
    /// The run is over.
    Finish,
}

/// A training step.
#[derive(Clone)]
pub struct TrainStep {
    /// The batch of all ranks; each takes its share.
    pub batch: Arc<Batch>,
    /// Which step it is.
    pub step: Step,
    /// Whether the step is recorded.
    pub record: bool,
}
