//! The figures of columns.

use serde::Serialize;

/// Figures of one dense column, over its present and finite values; `None` where there are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseStats {
    /// Name of the column.
    pub column: String,
    /// Share of rows without a value.
    pub missing_share: f64,
    /// Values that are infinite.
    pub not_finite: u64,
    pub minimum: Option<f64>,
    pub mean: Option<f64>,
    pub deviation: Option<f64>,
    pub maximum: Option<f64>,
    /// Quantiles at 0.01, 0.25, 0.5, 0.75 and 0.99 (nearest rank; the median
    /// of an even number is the mean of the two in the middle); of a sample beyond 65,536 rows.
    pub quantiles: Option<[f64; 5]>,
}

/// Figures of one categorical column, over its present categories.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CategoricalStats {
    /// Name of the column.
    pub column: String,
    /// Share of rows without a category.
    pub missing_share: f64,
    /// Categories per row, missing rows counted as 0.
    pub bag_length_mean: f64,
    /// Number of different categories.
    pub distinct: u64,
    /// Whether `distinct` was counted or estimated (HyperLogLog, standard error 0.8 %).
    pub distinct_is: CountMethod,
    /// Share of the most frequent category among all; `None` without categories. Beyond the exact
    /// count it is taken among the categories that occurred first.
    pub top_share: Option<f64>,
    /// Ids outside the column's table: of raw files alone, and of tables that are known.
    pub ids_outside: Option<u64>,
    /// Exponent `s` of a law `frequency ∝ rank^-s` fitted to the more frequent categories; `None`
    /// where fewer than ten occur often enough.
    pub zipf_exponent: Option<f64>,
}

/// How a number was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountMethod {
    Exact,
    Estimate,
}
