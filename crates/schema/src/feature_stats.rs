//! How a sparse feature is used: ids of its bags, and how often each row is looked up. What a
//! prediction needs of data that nobody has read.

use serde::Serialize;

use crate::distribution::IndexDistribution;
use crate::model::ModelConfig;

/// The use of one sparse feature, batch after batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FeatureStats {
    /// Ids of a bag, on average; those beyond a sequence's length are not looked up.
    pub ids_per_bag: f64,
    /// Ids of the longest bag.
    pub longest_bag: u64,
    /// How often each row of its table is looked up.
    pub ids: IndexDistribution,
}

/// Why statistics are none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "feature statistics: expected from 0 to {longest} ids a bag on average, the longest bag having {longest}, got {mean}"
)]
pub struct FeatureStatsError {
    /// The mean that was given.
    pub mean: f64,
    /// The longest bag that was given.
    pub longest: u64,
}

impl FeatureStats {
    /// Bags of so many ids on average and at most.
    ///
    /// # Errors
    /// [`FeatureStatsError`] where the mean is no number, below 0 or above the longest bag.
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

    /// All bags of one length, all rows alike, for each feature of a model.
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
    fn a_mean_lies_between_nothing_and_the_longest_bag() {
        let check = |mean, longest| FeatureStats::new(mean, longest, IndexDistribution::Uniform);
        assert!(check(1.5, 4).is_ok() && check(0.0, 0).is_ok());
        for (mean, longest) in [(5.0, 4), (-1.0, 4), (f64::NAN, 4)] {
            let error = check(mean, longest).unwrap_err();
            assert!(error.to_string().contains("from 0 to 4 ids"), "{error}");
        }
    }
}
