//! Statistics of how a sparse feature is used: ids per bag and frequencies of rows. A prediction
//! uses them when it does not read the data itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::JobConfig;
use crate::distribution::IndexDistribution;
use crate::model::ModelConfig;
use crate::unit::listed;

/// Name of the form of a file of feature statistics.
const FORMAT: &str = "rowmill-feature-stats";
/// The version of such files that this program writes and reads.
const VERSION: u32 = 1;

/// Statistics of one sparse feature: the lengths of its bags and the rows that it looks up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// Measured statistics of the features of some data. `rowmill data stats` and `rowmill init` write
/// them to a JSON file, which plans read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureStatsFile {
    format: String,
    version: u32,
    /// Statistics of each feature, by its name.
    features: BTreeMap<String, FeatureStats>,
}

/// Error of a file of feature statistics that does not fit a job.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FeatureStatsFileError {
    #[error("expected {FORMAT} of version {VERSION}, got {format} of version {version}")]
    OtherForm { format: String, version: String },
    #[error(
        "expected the features of the model, got others; missing: {}; surplus: {}",
        listed_or_none(missing),
        listed_or_none(surplus)
    )]
    OtherFeatures { missing: Vec<String>, surplus: Vec<String> },
    #[error("features.{name}: {source}")]
    BagSize { name: String, source: FeatureStatsError },
    #[error("features.{name}.longest_bag: expected at most {}, got {got}", u32::MAX)]
    LongestBag { name: String, got: u64 },
    #[error("features.{name}.ids: expected uniform, or zipf with an exponent of 0 or more")]
    Ids { name: String },
}

fn listed_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { listed(names) }
}

impl FeatureStatsFile {
    /// Creates the content of a file from the statistics of features, by name.
    #[must_use]
    pub fn new(features: BTreeMap<String, FeatureStats>) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, features }
    }

    /// Checks the form and the version of a file, which are its keys `format` and `version`.
    ///
    /// # Errors
    /// [`FeatureStatsFileError::OtherForm`] if this program does not read such files.
    pub fn check_form(format: &str, version: &str) -> Result<(), FeatureStatsFileError> {
        if format == FORMAT && version == VERSION.to_string() {
            return Ok(());
        }
        let (format, version) = (format.to_owned(), version.to_owned());
        Err(FeatureStatsFileError::OtherForm { format, version })
    }

    /// Returns the statistics of the features of a job, in the order of its features. The data may
    /// have categorical columns that the model does not look up.
    ///
    /// # Errors
    /// [`FeatureStatsFileError::OtherFeatures`] if the statistics are those of other data, and an
    /// error with the name of a feature if its numbers are out of range.
    pub fn for_config(
        &self,
        config: &JobConfig,
    ) -> Result<Vec<FeatureStats>, FeatureStatsFileError> {
        let features = config.model.features();
        let columns = config.data.categorical_columns();
        let is_known = |name: &String| {
            features.iter().any(|feature| feature.name == name)
                || columns.iter().any(|column| column.column == *name)
        };
        let surplus: Vec<String> =
            self.features.keys().filter(|name| !is_known(name)).cloned().collect();
        let (mut stats, mut missing) = (Vec::with_capacity(features.len()), Vec::new());
        for feature in &features {
            match self.features.get(feature.name) {
                Some(measured) => stats.push(measured.checked(feature.name)?),
                None => missing.push(feature.name.to_owned()),
            }
        }
        if missing.is_empty() && surplus.is_empty() {
            return Ok(stats);
        }
        Err(FeatureStatsFileError::OtherFeatures { missing, surplus })
    }
}

impl FeatureStats {
    /// Returns the statistics of the feature `name` if its numbers are in range.
    fn checked(&self, name: &str) -> Result<Self, FeatureStatsFileError> {
        let name = name.to_owned();
        let Self { ids_per_bag, longest_bag, ids } = *self;
        if longest_bag > u64::from(u32::MAX) {
            return Err(FeatureStatsFileError::LongestBag { name, got: longest_bag });
        }
        let is_in_range = match ids {
            IndexDistribution::Uniform => true,
            IndexDistribution::Zipf { exponent } => exponent.is_finite() && exponent >= 0.0,
            IndexDistribution::Reuse(_) => false,
        };
        if !is_in_range {
            return Err(FeatureStatsFileError::Ids { name });
        }
        Self::new(ids_per_bag, longest_bag, ids)
            .map_err(|source| FeatureStatsFileError::BagSize { name, source })
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
