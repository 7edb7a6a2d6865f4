//! Quantizes features into at most 255 bins each, so that a tree compares bytes and tries few
//! splits.

/// Maximum number of bins of a feature, so that a bin number fits into a byte.
const MOST: usize = 255;

use serde::{Deserialize, Serialize};

/// The bins of every feature, which turn a row of floats into a row of bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bins {
    /// Upper ends of the bins of each feature, in ascending order. A value belongs to the first bin
    /// whose end it does not exceed.
    ends: Vec<Vec<f32>>,
}

impl Bins {
    /// Restores the bins from the upper ends stored in a model file.
    pub fn from_ends(ends: Vec<Vec<f32>>) -> Self {
        Self { ends }
    }

    /// Computes bins that each contain about the same number of rows.
    pub fn from_rows(rows: &[&[f32]]) -> Self {
        let features = rows.first().map_or(0, |row| row.len());
        let ends = |feature: usize| {
            let mut values: Vec<f32> = rows.iter().map(|row| row[feature]).collect();
            values.sort_by(f32::total_cmp);
            let mut distinct = values.clone();
            distinct.dedup();
            // Put the end of a bin halfway between two values, so that new values go to the nearer
            // one.
            let between = |a: f32, b: f32| a + (b - a) / 2.0;
            if distinct.len() <= MOST {
                return distinct.windows(2).map(|pair| between(pair[0], pair[1])).collect();
            }
            let mut ends: Vec<f32> =
                (1..MOST).map(|bin| values[bin * values.len() / MOST]).collect();
            ends.dedup();
            ends
        };
        Self { ends: (0..features).map(ends).collect() }
    }

    /// Checks that every feature has few enough bins for a byte, and that their ends are finite and
    /// sorted.
    pub fn is_valid(&self) -> bool {
        let is_finite = |ends: &Vec<f32>| ends.iter().all(|end| end.is_finite());
        self.ends.iter().all(|ends| ends.len() < MOST && ends.is_sorted() && is_finite(ends))
    }

    /// Returns the upper ends of the bins of each feature.
    pub fn ends(&self) -> &[Vec<f32>] {
        &self.ends
    }

    /// Computes the bin of each feature of `row` and writes it to `bins`.
    pub fn place(&self, row: &[f32], bins: &mut [u8]) {
        for ((ends, value), bin) in self.ends.iter().zip(row).zip(bins) {
            *bin = ends.partition_point(|end| end < value) as u8;
        }
    }
}
