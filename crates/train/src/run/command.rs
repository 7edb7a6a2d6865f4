//! What rank 0 tells every rank to do next, and what comes of it.

use std::sync::Arc;

use schema::Batch;

use crate::{Step, checkpoint};

/// The next thing every rank does.
#[derive(Clone)]
pub enum Command {
    /// One training step.
    Train {
        /// The batch of all ranks; each takes its share.
        batch: Arc<Batch>,
        /// Which step it is.
        step: Step,
        /// Whether the step is recorded.
        record: bool,
    },
    /// Forward only.
    Evaluate {
        /// The batch of all ranks; each takes its share.
        batch: Arc<Batch>,
    },
    /// Write parameters into a checkpoint that rank 0 commits.
    Save {
        /// The checkpoint begun.
        writer: Arc<checkpoint::Writer>,
    },
    /// Write what was recorded.
    WriteTrace,
    /// The run is over.
    Finish,
}
