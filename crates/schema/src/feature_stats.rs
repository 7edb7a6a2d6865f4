//! Statistics of a sparse feature's use: ids per bag and the frequencies of rows. They replace data
//! that was not read in a prediction.

use serde::Serialize;

use crate::distribution::IndexDistribution;
use crate::model::ModelConfig;

/// The use of one sparse feature per batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FeatureStats {
    /// Mean number of ids per bag. Ids beyond a sequence's length are not looked up.
    pub ids_per_bag: f64,
    /// Number of ids in the longest bag.
    pub longest_bag: u64,
    /// Distribution of lookups over the rows of the table.
    pub ids: IndexDistribution,
}

/// The mean number of ids per bag is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "feature statistics: expected from 0 to {longest} ids a bag on average, the longest bag having {longest}, got {mean}"
)]
pub struct FeatureStatsError {
    pub mean: f64,
    pub longest: u64,
}

impl FeatureStats {
    /// Creates statistics from the mean and the maximum number of ids per bag.
    ///
    /// # Errors
    /// [`FeatureStatsError`] if the mean is not finite, is negative, or exceeds the maximum.
    pub fn new(
        ids_per_bag: f64,
        longest_bag: u64,
        ids: IndexDistribution,
    ) -> Result<Self, FeatureStatsError> {
        if !(0.0..=longest_bag as f64).contains(&ids_per_bag) {
            return Err(FeatureStatsError { mean: ids_per_bag, longest: longest_bag });
        }
        Ok(Self { ids_per_bag, longest_bag, ids })
    }

    /// Returns statistics for each feature of a model with bags of equal length and uniform
    /// lookups.
    #[must_use]
    pub fn uniform(model: &ModelConfig, ids_per_bag: u32) -> Vec<Self> {
        let one = Self {
            ids_per_bag: f64::from(ids_per_bag),
            longest_bag: u64::from(ids_per_bag),
            ids: IndexDistribution::Uniform,
        };
        vec![one; model.tables.iter().map(|table| table.features.len()).sum()]
    }
}

#[cfg(test)]
mod tests {
    use super::FeatureStats;
    use crate::distribution::IndexDistribution;

    #[test]
    fn mean_must_be_between_zero_and_the_longest_bag() {
        let check = |mean, longest| FeatureStats::new(mean, longest, IndexDistribution::Uniform);
        assert!(check(1.5, 4).is_ok() && check(0.0, 0).is_ok());
        for (mean, longest) in [(5.0, 4), (-1.0, 4), (f64::NAN, 4)] {
            let error = check(mean, longest).unwrap_err();
            assert!(error.to_string().contains("from 0 to 4 ids"), "{error}");
        }
    }
}
