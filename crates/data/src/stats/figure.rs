//! The results of column statistics, which callers format as tables.

use serde::Serialize;

/// Statistics of one dense column over its present and finite values. The results are `None` if the
/// column has no such values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseStats {
    pub column: String,
    pub missing_share: f64,
    /// Number of infinite values.
    pub not_finite: u64,
    pub minimum: Option<f64>,
    pub mean: Option<f64>,
    pub deviation: Option<f64>,
    pub maximum: Option<f64>,
    /// Quantiles at 0.01, 0.25, 0.5, 0.75 and 0.99 by nearest rank; the median of an even number of
    /// values is the mean of the middle two. Beyond 65,536 rows, quantiles are taken from a sample.
    pub quantiles: Option<[f64; 5]>,
}

/// Statistics of one categorical column over its present categories.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CategoricalStats {
    pub column: String,
    pub missing_share: f64,
    /// Mean number of categories per row, counting missing rows as 0.
    pub bag_length_mean: f64,
    pub bag_length_max: u64,
    pub distinct: u64,
    /// Whether `distinct` is exact or an estimate (HyperLogLog, standard error 0.8 %).
    pub distinct_is: CountMethod,
    /// Share of the most frequent category; `None` without categories. Beyond the limit of exact
    /// counts, only the categories that appeared first are considered.
    pub top_share: Option<f64>,
    /// Ids outside the column's table, for raw files with known tables only.
    pub ids_outside: Option<u64>,
    /// Exponent `s` of a power law `frequency ∝ rank^-s` fitted to the more frequent categories;
    /// `None` if fewer than ten are frequent enough.
    pub zipf_exponent: Option<f64>,
}

/// Whether a number was counted exactly or estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountMethod {
    Exact,
    Estimate,
}
