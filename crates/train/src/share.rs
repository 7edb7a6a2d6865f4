//! The samples of one rank within the batch of all ranks. Batches come from `run`, and their ids
//! and values go to `model`.

use std::ops::Range;
use std::sync::Arc;

use data::{BatchShare, Loaded};
use schema::{Batch, Rank};

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

/// A batch as a rank receives it from a loader.
#[derive(Clone, Debug)]
pub enum ReadBatch {
    /// All samples of the batch, for all ranks of this process.
    Whole(Arc<Batch>),
    /// The samples of this rank, out of `global_size` samples over all ranks.
    Own { own: RankBatch, global_size: usize },
}

/// Returns the samples of one part of a batch that is divided as evenly as possible. If a batch is
/// divided over ranks, and these ranks are divided into equal groups of neighbors, the samples of
/// a group are those of a part of the batch divided over groups.
#[must_use]
pub fn samples_of_part(samples: usize, part: usize, parts: usize) -> Range<usize> {
    samples * part / parts..samples * (part + 1) / parts
}

impl ReadBatch {
    /// Returns the number of samples over all ranks.
    #[must_use]
    pub fn global_size(&self) -> usize {
        match self {
            Self::Whole(batch) => batch.size,
            Self::Own { global_size, .. } => *global_size,
        }
    }

    /// Returns the samples of `rank`, which must be this rank, out of `ranks` ranks.
    #[must_use]
    pub fn samples_of(&self, rank: Rank, ranks: usize) -> RankBatch {
        match self {
            Self::Own { own, .. } => own.clone(),
            Self::Whole(batch) if ranks == 1 => {
                RankBatch { batch: Arc::clone(batch), first_sample: 0 }
            }
            Self::Whole(batch) => {
                let samples = samples_of_part(batch.size, rank.index(), ranks);
                let first_sample = samples.start;
                RankBatch { batch: Arc::new(batch.slice(samples)), first_sample }
            }
        }
    }
}

impl From<Loaded> for ReadBatch {
    fn from(loaded: Loaded) -> Self {
        let batch = Arc::new(loaded.batch);
        match loaded.share {
            None => Self::Whole(batch),
            Some(BatchShare { first_sample, global_size }) => {
                Self::Own { own: RankBatch { batch, first_sample }, global_size }
            }
        }
    }
}

impl RankBatch {
    /// Returns the samples for a step on a batch of `global_size` samples over all ranks.
    #[must_use]
    pub fn share(&self, global_size: usize) -> SampleShare<'_> {
        SampleShare { batch: &self.batch, first_sample: self.first_sample, global_size }
    }
}
