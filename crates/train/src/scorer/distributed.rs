//! Scoring by several processes. Rank 0 reads the rows and sends each rank its share of a batch.

use comm::Communicator;
use device::Backend;
use schema::{Batch, JaggedTensor, Rank};

use super::Scorer;
use crate::Error;

/// Scores with several processes, each of which maps the whole checkpoint into memory. Rank 0 calls
/// [`Self::score`] and [`Self::end`], the other ranks call [`Self::follow`].
pub struct DistributedScorer {
    comm: Communicator,
}

impl DistributedScorer {
    /// Creates a scorer for the ranks of `comm`.
    #[must_use]
    pub fn new(comm: Communicator) -> Self {
        Self { comm }
    }

    /// Runs [`Scorer::score`] on all ranks. Only rank 0 calls it.
    ///
    /// # Errors
    /// Returns the errors of [`Scorer::score`], and [`Error::Communication`] if a rank fails.
    pub fn score<B: Backend>(
        &mut self,
        scorer: &mut Scorer<B>,
        batch: &Batch,
    ) -> Result<Vec<f32>, Error> {
        let has_weights = i64::from(batch.sparse.weights.is_some());
        self.comm.broadcast(Rank(0), &mut vec![1, has_weights])?;
        let size = self.comm.world_size();
        // Shares differ by at most one sample, so that ranks finish at about the same time.
        let cut = |rank: usize| batch.size * rank / size;
        let shares = (0..size).map(|rank| batch.slice(cut(rank)..cut(rank + 1)));
        let own = self.exchange(shares.collect(), has_weights == 1)?;
        let probabilities = scorer.score(&own)?;
        Ok(self.comm.all_gather(&probabilities)?.concat())
    }

    /// Informs the other ranks that there are no more rows. Only rank 0 calls it.
    ///
    /// # Errors
    /// [`Error::Communication`] if another rank has failed.
    pub fn end(mut self) -> Result<(), Error> {
        Ok(self.comm.broadcast(Rank(0), &mut vec![0i64, 0])?)
    }

    /// Scores the shares that rank 0 sends, until rank 0 calls [`Self::end`]. All ranks except rank
    /// 0 call it.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::score`].
    pub fn follow<B: Backend>(mut self, scorer: &mut Scorer<B>) -> Result<(), Error> {
        let mut order = Vec::<i64>::new();
        loop {
            self.comm.broadcast(Rank(0), &mut order)?;
            // The first number that rank 0 broadcasts is 1 before each batch, and 0 after the last
            // batch.
            let [1, has_weights] = order[..] else { return Ok(()) };
            let nothing = Batch::default;
            let shares = (0..self.comm.world_size()).map(|_| nothing()).collect();
            let own = self.exchange(shares, has_weights == 1)?;
            let probabilities = scorer.score(&own)?;
            self.comm.all_gather(&probabilities)?;
        }
    }

    /// Receives this rank's share of the batch that rank 0 has split.
    fn exchange(&mut self, shares: Vec<Batch>, has_weights: bool) -> Result<Batch, Error> {
        let lengths = |sparse: &JaggedTensor| -> Vec<i64> {
            let ends = sparse.offsets.windows(2).map(|pair| (pair[1] - pair[0]) as i64);
            [sparse.features as i64, sparse.batch_size as i64].into_iter().chain(ends).collect()
        };
        // Lengths give the receiver the shape of its share, from which it computes the offsets.
        let mut sizes: Vec<_> = shares.iter().map(|share| lengths(&share.sparse)).collect();
        self.comm.all_to_all(&mut sizes)?;
        let mut dense: Vec<_> = shares.iter().map(|share| share.dense.clone()).collect();
        self.comm.all_to_all(&mut dense)?;
        let mut values: Vec<_> = shares.iter().map(|share| share.sparse.values.clone()).collect();
        self.comm.all_to_all(&mut values)?;
        let weights_of = |share: &Batch| share.sparse.weights.clone().unwrap_or_default();
        let mut weights: Vec<_> = shares.iter().map(weights_of).collect();
        if has_weights {
            self.comm.all_to_all(&mut weights)?;
        }
        let bytes = sizes[0].len();
        let [features, size, lengths @ ..] = &sizes[0][..] else {
            return Err(Error::Reply { rank: 0, expected: "a share of a batch", bytes });
        };
        let (mut offsets, mut end) = (vec![0], 0);
        offsets.extend(lengths.iter().map(|&length| {
            end += length as usize;
            end
        }));
        let size = *size as usize;
        let sparse = JaggedTensor {
            features: *features as usize,
            batch_size: size,
            offsets,
            values: values.swap_remove(0),
            weights: has_weights.then(|| weights.swap_remove(0)),
        };
        // Scoring does not use labels, so zeros take their place.
        Ok(Batch { size, dense: dense.swap_remove(0), sparse, labels: vec![0.0; size] })
    }
}
