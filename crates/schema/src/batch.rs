//! A batch in host memory: dense features, labels, and the jagged ids of all sparse features.

/// Ragged ids of a batch: one bag of ids for each pair of feature and sample. Bags are stored
/// feature-major, so the bag of feature `f` and sample `b` has the index `f·B + b`.
///
/// Invariant (checked by [`JaggedTensor::check`]): `offsets` has `F·B + 1` entries, starts at 0,
/// never decreases, and ends at `values.len()`. If present, `weights` is as long as `values`.
///
/// ```
/// use schema::JaggedTensor;
///
/// // Two features of two samples, with the bags [3], [5, 7], [] and [1].
/// let ids = JaggedTensor::from_lengths(2, &[1, 2, 0, 1], vec![3, 5, 7, 1]);
/// assert_eq!(ids.values[ids.bag(0, 1)], [5, 7]);
/// assert!(ids.bag(1, 0).is_empty());
/// assert_eq!(ids.check(), Ok(()));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JaggedTensor {
    /// F, the number of features.
    pub features: usize,
    /// B, the number of samples.
    pub batch_size: usize,
    /// Boundaries of the bags, `[F·B + 1]`: bag `i` is `values[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
    /// Ids of all bags, `[nnz]`. The type is signed so that an error message can name a negative
    /// id.
    pub values: Vec<i64>,
    /// One weight per id, `[nnz]`, for weighted pooling.
    pub weights: Option<Vec<f32>>,
}

impl JaggedTensor {
    /// Creates a tensor of `features × batch_size` empty bags.
    #[must_use]
    pub fn empty(features: usize, batch_size: usize) -> Self {
        Self {
            features,
            batch_size,
            offsets: vec![0; features * batch_size + 1],
            values: Vec::new(),
            weights: None,
        }
    }

    /// Builds the tensor from bag lengths, `[F·B]`, feature-major.
    #[must_use]
    pub fn from_lengths(features: usize, lengths: &[usize], values: Vec<i64>) -> Self {
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        let mut end = 0;
        offsets.push(0);
        for &length in lengths {
            end += length;
            offsets.push(end);
        }
        // Without features, the number of samples does not follow from the lengths.
        let batch_size = lengths.len().checked_div(features).unwrap_or(0);
        Self { features, batch_size, offsets, values, weights: None }
    }

    /// Returns the range of one bag in `values`.
    #[must_use]
    pub fn bag(&self, feature: usize, sample: usize) -> std::ops::Range<usize> {
        let bag = feature * self.batch_size + sample;
        self.offsets[bag]..self.offsets[bag + 1]
    }

    /// Returns the range of all bags of one feature in `values`.
    #[must_use]
    pub fn feature(&self, feature: usize) -> std::ops::Range<usize> {
        self.offsets[feature * self.batch_size]..self.offsets[(feature + 1) * self.batch_size]
    }

    /// Checks the invariant of the layout.
    ///
    /// # Errors
    /// Returns the first part of the invariant that is violated, with the expected and the actual
    /// number.
    pub fn check(&self) -> Result<(), JaggedError> {
        let expected = self.features * self.batch_size + 1;
        if self.offsets.len() != expected {
            return Err(JaggedError::OffsetCount { expected, got: self.offsets.len() });
        }
        if let Some(bag) = self.offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(JaggedError::OffsetsFall { bag });
        }
        let (first, last) = (self.offsets[0], self.offsets[expected - 1]);
        if first != 0 || last != self.values.len() {
            return Err(JaggedError::Ends { first, last, values: self.values.len() });
        }
        match &self.weights {
            Some(weights) if weights.len() != self.values.len() => {
                Err(JaggedError::WeightCount { expected: self.values.len(), got: weights.len() })
            }
            _ => Ok(()),
        }
    }

    /// Copies the samples in `range`, for every feature, into a separate tensor.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let batch_size = range.len();
        let mut out = Self::empty(self.features, 0);
        out.batch_size = batch_size;
        out.offsets.reserve(self.features * batch_size);
        out.weights = self.weights.as_ref().map(|_| Vec::new());
        for feature in 0..self.features {
            // The bags of one feature are contiguous, so the samples are copied as one block per
            // feature.
            let first = feature * self.batch_size + range.start;
            let (from, to) = (self.offsets[first], self.offsets[first + batch_size]);
            // The copy has its own `values`, so its offsets are shifted to where this feature
            // begins there.
            let shift = out.values.len();
            let ends = &self.offsets[first + 1..=first + batch_size];
            out.offsets.extend(ends.iter().map(|&end| end - from + shift));
            out.values.extend_from_slice(&self.values[from..to]);
            if let (Some(into), Some(weights)) = (&mut out.weights, &self.weights) {
                into.extend_from_slice(&weights[from..to]);
            }
        }
        out
    }
}

/// The layout of a [`JaggedTensor`] violates its invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JaggedError {
    #[error("offsets: expected {expected} entries, got {got}")]
    OffsetCount {
        /// The expected number of offsets is always `F·B + 1` for `F` features and `B` samples.
        expected: usize,
        got: usize,
    },
    #[error("offsets fall after bag {bag}")]
    OffsetsFall {
        /// Index of the first bag whose end offset is below its start offset.
        bag: usize,
    },
    /// The offsets do not cover all values.
    #[error("offsets: expected to run from 0 to {values}, got {first} to {last}")]
    Ends { first: usize, last: usize, values: usize },
    #[error("weights: expected {expected} entries, got {got}")]
    WeightCount { expected: usize, got: usize },
}

/// One batch of samples with dense features, ids and labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// B, the number of samples.
    pub size: usize,
    /// Dense features, `[B, dense_features]`.
    pub dense: Vec<f32>,
    /// Ids of the sparse features, in the order of [`crate::ModelConfig::features`].
    pub sparse: JaggedTensor,
    /// Labels of the samples, `[B]`.
    pub labels: Vec<f32>,
}

impl Batch {
    /// Computes the size in bytes of a batch with the given number of samples, dense features,
    /// sparse features and ids.
    #[must_use]
    pub fn bytes(samples: usize, dense: usize, features: usize, ids: usize) -> usize {
        // Each sample has one label besides its dense features. There is one offset more than there
        // are bags.
        let numbers = samples * (1 + dense) * size_of::<f32>();
        numbers + ids * size_of::<i64>() + (features * samples + 1) * size_of::<usize>()
    }

    /// Copies the samples in `range` into a separate batch.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let width = self.dense.len().checked_div(self.size).unwrap_or(0);
        Self {
            size: range.len(),
            dense: self.dense[range.start * width..range.end * width].to_vec(),
            sparse: self.sparse.slice(range.clone()),
            labels: self.labels[range].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{JaggedError, JaggedTensor};

    #[test]
    fn invalid_layouts_are_errors() {
        let mut kjt = JaggedTensor::from_lengths(2, &[1, 0, 2, 1], vec![5, 6, 7, 8]);
        assert_eq!(kjt.check(), Ok(()));
        kjt.values.push(9);
        assert_eq!(kjt.check(), Err(JaggedError::Ends { first: 0, last: 4, values: 5 }));
        kjt.values.pop();
        kjt.offsets[1] = 3;
        assert_eq!(kjt.check(), Err(JaggedError::OffsetsFall { bag: 1 }));
        kjt.offsets.pop();
        assert_eq!(kjt.check(), Err(JaggedError::OffsetCount { expected: 5, got: 4 }));
    }

    proptest! {
        #[test]
        fn concatenated_slices_equal_the_batch(
            lengths in proptest::collection::vec(0usize..4, 0..40),
            cut in 0usize..20,
        ) {
            let features = 2;
            let lengths = &lengths[..lengths.len() / features * features];
            let values: Vec<i64> = (0..lengths.iter().sum::<usize>() as i64).collect();
            let whole = JaggedTensor::from_lengths(features, lengths, values);
            let cut = cut.min(whole.batch_size);
            let (a, b) = (whole.slice(0..cut), whole.slice(cut..whole.batch_size));
            prop_assert_eq!(a.check(), Ok(()));
            prop_assert_eq!(b.check(), Ok(()));
            for feature in 0..features {
                let (left, right) = (a.feature(feature), b.feature(feature));
                let joined = [&a.values[left], &b.values[right]].concat();
                prop_assert_eq!(&joined[..], &whole.values[whole.feature(feature)]);
            }
        }
    }
}
