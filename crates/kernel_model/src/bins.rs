//! Quantizes features into at most 255 bins each, so that a tree compares bytes and tries few
//! splits.

use serde::{Deserialize, Serialize};

/// Maximum number of bins of a feature, so that a bin number fits into a byte.
pub const BINS_MOST: usize = 255;
/// Maximum number of features of a row.
pub const FEATURES_MOST: usize = 64;

/// Training rows, with each feature as a bin number, and one target per row.
pub struct BinnedRows {
    pub features: usize,
    pub bins: Vec<u8>,
    pub targets: Vec<f32>,
}

/// The bins of every feature, which turn a row of floats into a row of bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bins {
    /// Upper ends of the bins of each feature, in ascending order. A value belongs to the first bin
    /// whose end it does not exceed.
    ends: Vec<Vec<f32>>,
}

impl Bins {
    /// Computes at most `most` bins of each feature, which each contain about the same number of
    /// rows.
    pub fn from_rows(rows: &[&[f32]], most: usize) -> Self {
        let features = rows.first().map_or(0, |row| row.len());
        let ends = |feature: usize| {
            let mut values: Vec<f32> = rows.iter().map(|row| row[feature]).collect();
            values.sort_by(f32::total_cmp);
            let mut distinct = values.clone();
            distinct.dedup();
            // Put the end of a bin halfway between two values, so that new values go to the nearer
            // one.
            let between = |a: f32, b: f32| a + (b - a) / 2.0;
            if distinct.len() <= most {
                return distinct.windows(2).map(|pair| between(pair[0], pair[1])).collect();
            }
            let mut ends: Vec<f32> =
                (1..most).map(|bin| values[bin * values.len() / most]).collect();
            ends.dedup();
            ends
        };
        Self { ends: (0..features).map(ends).collect() }
    }

    /// Checks that there are few enough features, and few enough bins for a byte, and that the ends
    /// are finite and sorted.
    pub fn is_valid(&self) -> bool {
        let is_finite = |ends: &Vec<f32>| ends.iter().all(|end| end.is_finite());
        let is_short = self.ends.len() <= FEATURES_MOST;
        is_short
            && self
                .ends
                .iter()
                .all(|ends| ends.len() < BINS_MOST && ends.is_sorted() && is_finite(ends))
    }

    /// Rounds the ends of the bins, which keeps files small.
    pub fn rounded(mut self) -> Self {
        for ends in &mut self.ends {
            ends.iter_mut().for_each(|end| *end = (1e3 * *end).round() / 1e3);
            ends.dedup();
        }
        self
    }

    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.ends.len()
    }

    /// Converts features and targets to the form that forests are trained on.
    pub fn training_rows<R: AsRef<[f32]>>(
        &self,
        examples: impl Iterator<Item = (R, f32)>,
    ) -> BinnedRows {
        let features = self.ends.len();
        let mut table = BinnedRows { features, bins: Vec::new(), targets: Vec::new() };
        let mut placed = vec![0; features];
        for (row, target) in examples {
            self.place(row.as_ref(), &mut placed);
            table.bins.extend_from_slice(&placed);
            table.targets.push(target);
        }
        table
    }

    /// Computes the bin of each feature of `row` and writes it to `bins`.
    pub fn place(&self, row: &[f32], bins: &mut [u8]) {
        for ((ends, value), bin) in self.ends.iter().zip(row).zip(bins) {
            *bin = ends.partition_point(|end| end < value) as u8;
        }
    }
}
