//! Distributions of the ids of a table: uniform, Zipf, or a measured histogram of reuse.

mod law;
mod reuse;

use serde::{Deserialize, Serialize};

pub use law::IdLaw;
pub use reuse::{ReuseError, ReuseHistogram, ReusedRows};

/// The distribution of ids over the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per table, and it is copied like a number"
)]
pub enum IndexDistribution {
    Uniform,
    /// `P(rank k) ∝ k^-exponent` over exactly the table's rows.
    Zipf {
        /// Skew of the distribution; 1.05 is typical of production tables.
        exponent: f64,
    },
    /// A measured histogram, which groups rows into classes by their number of uses per batch.
    Reuse(ReuseHistogram),
}

impl IndexDistribution {
    /// Returns the frequency rank in `0..rows` (0 is the most frequent) at the quantile `u` in `[0,
    /// 1)`.
    ///
    /// The Zipf case inverts the continuous distribution and clamps the result to `rows` ranks.
    #[must_use]
    pub fn rank_at(self, u: f64, rows: u64) -> u64 {
        match self {
            Self::Uniform => ((u * rows as f64) as u64).min(rows - 1),
            Self::Zipf { exponent } => {
                let n = rows as f64 + 1.0;
                // At exponent 1 the integral is a logarithm, and the general formula would divide
                // by 0.
                let k = if (exponent - 1.0).abs() < 1e-9 {
                    (u * n.ln()).exp()
                } else {
                    let b = 1.0 - exponent;
                    (1.0 + u * (n.powf(b) - 1.0)).powf(1.0 / b)
                };
                (k as u64).clamp(1, rows) - 1
            }
            Self::Reuse(histogram) => histogram.on(rows).rank_at(u),
        }
    }

    /// Returns the row at the quantile `u`. Frequent rows are scattered over the table.
    #[must_use]
    pub fn row_at(self, u: f64, rows: u64) -> u64 {
        row_of(self.rank_at(u, rows), rows)
    }
}

/// Returns the row that has the given frequency rank. A multiplicative hash scatters frequent rows
/// over the table.
#[must_use]
pub fn row_of(rank: u64, rows: u64) -> u64 {
    ((u128::from(rank) * 2_654_435_761 + 12_345) % u128::from(rows)) as u64
}

#[cfg(test)]
mod tests {
    use super::IndexDistribution;

    #[test]
    fn zipf_prefers_low_ranks_and_stays_in_range() {
        let zipf = IndexDistribution::Zipf { exponent: 1.05 };
        assert_eq!(zipf.rank_at(0.0, 1000), 0);
        assert!(zipf.rank_at(0.999_999, 1000) < 1000);
        assert!(zipf.rank_at(0.5, 1_000_000) < 10_000);
        assert_eq!(IndexDistribution::Uniform.rank_at(0.5, 10), 5);
        assert_eq!(zipf.rank_at(0.7, 1), 0);
    }
}
