//! Features in at most 255 bins each, so that a tree compares bytes and tries few splits.

/// Most bins of a feature.
const MOST: usize = 255;

/// Where the bins of each feature end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bins {
    /// Per feature, rising; a value belongs to the first bin whose end it does not exceed.
    ends: Vec<Vec<f32>>,
}

impl Bins {
    /// With these ends, as a file has them.
    pub fn from_ends(ends: Vec<Vec<f32>>) -> Self {
        Self { ends }
    }

    /// With about as many of `rows` in each bin.
    pub fn from_rows(rows: &[&[f32]]) -> Self {
        let features = rows.first().map_or(0, |row| row.len());
        let ends = |feature: usize| {
            let mut values: Vec<f32> = rows.iter().map(|row| row[feature]).collect();
            values.sort_by(f32::total_cmp);
            let mut distinct = values.clone();
            distinct.dedup();
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

    /// Where the bins end.
    pub fn ends(&self) -> &[Vec<f32>] {
        &self.ends
    }

    /// The bins of one row's features.
    pub fn place(&self, row: &[f32], bins: &mut [u8]) {
        for ((ends, value), bin) in self.ends.iter().zip(row).zip(bins) {
            *bin = ends.partition_point(|end| end < value) as u8;
        }
    }
}
