//! Statistics of how a sparse feature is used: ids per bag and frequencies of rows. A prediction
//! uses them when it does not read the data itself.

use serde::Serialize;

use crate::config::JobConfig;
use crate::distribution::IndexDistribution;
use crate::model::ModelConfig;

/// Statistics of one sparse feature: the lengths of its bags and the rows that it looks up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FeatureStats {
    /// Mean number of ids per bag. Ids beyond a table's sequence length are not looked up.
    pub ids_per_bag: f64,
    /// Number of ids in the longest bag.
    pub longest_bag: u64,
    /// Distribution of lookups over the rows of the table.
    pub ids: IndexDistribution,
}

/// Error of a mean number of ids per bag that is negative, not finite, or above the longest bag.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "feature statistics: expected a mean of 0 to {longest} ids per bag, because the longest bag has {longest}, got {mean}"
)]
pub struct FeatureStatsError {
    pub mean: f64,
    pub longest: u64,
}

impl FeatureStats {
    /// Creates statistics from the mean and the maximum number of ids per bag.
    ///
    /// # Errors
    /// Returns [`FeatureStatsError`] if the mean is not finite, is negative, or exceeds the
    /// maximum.
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

    /// Returns the same statistics for each feature of `model`: bags of `ids_per_bag` ids, and
    /// lookups that are uniform over the rows.
    #[must_use]
    pub fn uniform(model: &ModelConfig, ids_per_bag: u32) -> Vec<Self> {
        let one = Self {
            ids_per_bag: f64::from(ids_per_bag),
            longest_bag: u64::from(ids_per_bag),
            ids: IndexDistribution::Uniform,
        };
        vec![one; model.tables.iter().map(|table| table.features.len()).sum()]
    }

    /// Returns uniform statistics of each feature with the bag sizes of `[synthetic]`. Features
    /// without one have bags of `ids_per_bag` ids.
    #[must_use]
    pub fn with_bag_sizes(config: &JobConfig, ids_per_bag: u32) -> Vec<Self> {
        let mut features = Self::uniform(&config.model, ids_per_bag);
        for (stats, feature) in features.iter_mut().zip(config.model.features()) {
            if let Some(size) = config.synthetic.bag_sizes.get(feature.name) {
                (stats.ids_per_bag, stats.longest_bag) = (f64::from(*size), u64::from(*size));
            }
        }
        features
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
            assert!(error.to_string().contains("mean of 0 to 4 ids"), "{error}");
        }
    }
}
