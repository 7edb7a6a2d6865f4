//! Writes measured statistics of features to a file, and reads them for a plan.

use std::path::Path;

use data::stats::{CategoricalStats, Stats};
use schema::{FeatureStats, FeatureStatsFile, FeatureStatsFileError, IndexDistribution, JobConfig};
use serde_json::Value;

use crate::error::{Error, UsageError};
use crate::output;

/// Writes the statistics of all categorical columns.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write(path: &Path, stats: &Stats) -> Result<(), Error> {
    let columns = stats.categorical.iter();
    let features = columns.map(|column| (column.column.clone(), describe(column))).collect();
    output::put_json(path, &FeatureStatsFile::new(features))
}

/// Describes the lookups of a column.
fn describe(column: &CategoricalStats) -> FeatureStats {
    // A missing id of a column of single ids is row 0, so each of its bags has one id.
    let is_single = column.bag_length_max <= 1;
    let ids_per_bag = if is_single { 1.0 } else { column.bag_length_mean };
    // The exponent is unknown if ids are too rare or too few to show a skew.
    let ids = match column.zipf_exponent {
        Some(exponent) => IndexDistribution::Zipf { exponent: exponent.max(0.0) },
        None => IndexDistribution::Uniform,
    };
    FeatureStats { ids_per_bag, longest_bag: column.bag_length_max.max(1), ids }
}

/// Reads the statistics of the features of a configuration, in the order of its features.
///
/// # Errors
/// [`UsageError::FeatureStats`] for another version or other features, and
/// [`UsageError::FeatureStatsForm`] for text of another form.
pub fn read(path: &Path, config: &JobConfig) -> Result<Vec<FeatureStats>, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let malformed =
        |source| Error::from(UsageError::FeatureStatsForm { path: path.to_owned(), source });
    let refused = |source: FeatureStatsFileError| {
        Error::from(UsageError::FeatureStats { path: path.to_owned(), source: Box::new(source) })
    };
    let content: Value = serde_json::from_str(&text).map_err(malformed)?;
    // Other versions may have other keys, so the version is checked before the keys.
    let format = content["format"].as_str().unwrap_or("another form");
    FeatureStatsFile::check_form(format, &content["version"].to_string()).map_err(refused)?;
    let file: FeatureStatsFile = serde_json::from_value(content).map_err(malformed)?;
    file.for_config(config).map_err(refused)
}
