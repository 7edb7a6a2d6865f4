//! The samples of one rank within the batch of all ranks. Batches come from `run`, and their ids
//! and values go to `model`.

use std::sync::Arc;

use schema::Batch;

/// The samples of one rank within the batch of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct SampleShare<'a> {
    pub batch: &'a Batch,
    /// Index of the rank's first sample in the global batch.
    pub first_sample: usize,
    /// Number of samples over all ranks. The loss is the mean over them.
    pub global_size: usize,
}

/// This rank's samples of a batch, which other threads may read.
#[derive(Clone, Debug)]
pub struct RankBatch {
    pub batch: Arc<Batch>,
    /// Index of the first sample in the global batch.
    pub first_sample: usize,
}

impl RankBatch {
    /// Returns the samples for a step on a batch of `global_size` samples over all ranks.
    #[must_use]
    pub fn share(&self, global_size: usize) -> SampleShare<'_> {
        SampleShare { batch: &self.batch, first_sample: self.first_sample, global_size }
    }
}
