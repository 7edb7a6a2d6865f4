//! Running statistics of one categorical column. Distinct categories are counted up to a limit and
//! estimated beyond it (HyperLogLog, Flajolet et al. 2007).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use schema::random;

use super::figure::{CategoricalStats, CountMethod};
use crate::dataset::fitted::MixHasher;

/// Largest number of categories that are counted individually. Later categories only enter the
/// estimate.
const EXACT_DISTINCT: usize = 1 << 17;
/// log2 of the number of registers. With 2^14 registers, the standard error is 1.04 / 2^7 = 0.8 %.
const REGISTER_BITS: u32 = 14;
/// Minimum count of a category in the fit of the exponent. Rarer categories are mostly noise.
const FIT_COUNT: u64 = 20;

/// Running counts of one categorical column, with the registers of the estimate.
pub(crate) struct CategoryTally {
    column: String,
    present: u64,
    empty: u64,
    /// Number of categories in the longest row.
    longest: u64,
    counts: HashMap<i64, u64, BuildHasherDefault<MixHasher>>,
    overflow: CountMethod,
    registers: Vec<u8>,
}

impl CategoryTally {
    pub(crate) fn new(column: String) -> Self {
        Self {
            column,
            present: 0,
            empty: 0,
            longest: 0,
            counts: HashMap::default(),
            overflow: CountMethod::Exact,
            registers: vec![0; 1 << REGISTER_BITS],
        }
    }

    /// Adds the categories of some rows, of which `empty` have none.
    pub(crate) fn take(&mut self, values: &[i64], empty: u64) {
        self.empty += empty;
        self.present += values.len() as u64;
        for &value in values {
            if let Some(count) = self.counts.get_mut(&value) {
                *count += 1;
                continue;
            }
            // A value is registered when it is first counted, or each time if it is not counted.
            self.register(value);
            if self.counts.len() < EXACT_DISTINCT {
                self.counts.insert(value, 1);
            } else {
                self.overflow = CountMethod::Estimate;
            }
        }
    }

    /// Notes the number of categories in the longest row of some rows.
    pub(crate) fn note_longest(&mut self, longest: u64) {
        self.longest = self.longest.max(longest);
    }

    fn register(&mut self, value: i64) {
        // The constant moves 0 away from the fixed point of the mixing function.
        let hash = random::mix(value.cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let index = (hash >> (64 - REGISTER_BITS)) as usize;
        // The bit set after the hashed bits stops the count of zeros if all hashed bits are 0.
        let rest = hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1);
        let zeros = rest.leading_zeros() as u8 + 1;
        self.registers[index] = self.registers[index].max(zeros);
    }

    fn estimate(&self) -> u64 {
        let m = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&zeros| 0.5f64.powi(i32::from(zeros))).sum();
        // The bias correction of HyperLogLog for 128 or more registers (Flajolet et al. 2007).
        let alpha = 0.7213 / (1.0 + 1.079 / m);
        // The correction for few categories is not needed, because those are counted.
        (alpha * m * m / sum).round() as u64
    }

    /// Whether a category was counted individually.
    pub(crate) fn has(&self, category: i64) -> bool {
        self.counts.contains_key(&category)
    }

    /// Returns the number of categories that occur once; 0 if not all were counted.
    pub(crate) fn once(&self) -> u64 {
        match self.overflow {
            CountMethod::Exact => self.counts.values().filter(|&&count| count == 1).count() as u64,
            // Beyond the limit, categories that occur once are mostly not counted.
            CountMethod::Estimate => 0,
        }
    }

    pub(crate) fn finish(self, rows: u64) -> CategoricalStats {
        let distinct = match self.overflow {
            CountMethod::Exact => self.counts.len() as u64,
            // More categories than the limit were seen, so a smaller estimate is certainly wrong.
            CountMethod::Estimate => self.estimate().max(self.counts.len() as u64 + 1),
        };
        let mut counts: Vec<u64> = self.counts.into_values().collect();
        counts.sort_unstable_by(|left, right| right.cmp(left));
        let rows = rows.max(1) as f64;
        CategoricalStats {
            column: self.column,
            missing_share: self.empty as f64 / rows,
            bag_length_mean: self.present as f64 / rows,
            bag_length_max: self.longest,
            distinct,
            distinct_is: self.overflow,
            top_share: counts.first().map(|&count| count as f64 / self.present as f64),
            ids_outside: None,
            zipf_exponent: zipf_exponent(&counts),
        }
    }
}

/// Fits the slope of `ln count` over `ln rank` by least squares. Each rank is weighted by `1 /
/// rank`, so that every octave of ranks counts the same. `counts` must be in descending order.
fn zipf_exponent(counts: &[u64]) -> Option<f64> {
    let frequent = counts.partition_point(|&count| count >= FIT_COUNT);
    if frequent < 10 {
        return None;
    }
    let (mut weights, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (rank, &count) in counts[..frequent].iter().enumerate() {
        let weight = 1.0 / (rank as f64 + 1.0);
        let (log_rank, log_count) = ((rank as f64 + 1.0).ln(), (count as f64).ln());
        weights += weight;
        x += weight * log_rank;
        y += weight * log_count;
        xx += weight * log_rank * log_rank;
        xy += weight * log_rank * log_count;
    }
    let slope = (weights * xy - x * y) / (weights * xx - x * x);
    Some(-slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_missing_shares_are_exact_up_to_the_limit() {
        let mut tally = CategoryTally::new("c".to_owned());
        tally.take(&[7, 7, -1, 9], 1);
        let stats = tally.finish(4);
        assert_eq!((stats.distinct, stats.distinct_is), (3, CountMethod::Exact));
        assert_eq!((stats.missing_share, stats.bag_length_mean), (0.25, 1.0));
        assert_eq!((stats.top_share, stats.zipf_exponent), (Some(0.5), None));
    }

    #[test]
    fn a_million_categories_are_estimated_to_3_percent() {
        let mut tally = CategoryTally::new("c".to_owned());
        let values: Vec<i64> = (0..1_000_000).collect();
        tally.take(&values, 0);
        tally.take(&values, 0);
        let stats = tally.finish(2_000_000);
        assert_eq!(stats.distinct_is, CountMethod::Estimate);
        assert!((stats.distinct as f64 / 1e6 - 1.0).abs() < 0.03, "{}", stats.distinct);
    }

    #[test]
    fn the_exponent_of_a_power_law_is_recovered() {
        for exponent in [0.8, 1.05, 1.5] {
            let counts: Vec<u64> =
                (1..=2000).map(|rank| (1e7 * f64::from(rank).powf(-exponent)) as u64).collect();
            let found = zipf_exponent(&counts).unwrap();
            assert!((found - exponent).abs() < 0.01, "{exponent}: {found}");
        }
        assert!(zipf_exponent(&[1000; 50]).unwrap().abs() < 1e-9, "uniform");
    }
}
