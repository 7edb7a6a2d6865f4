//! Rows of integers in columns: what the fastest readers make.

use crate::parse::parsed_row::ParsedRow;

/// Rows whose columns each have one integer, or none, in columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntegerColumns {
    /// Labels, `[rows]`; NaN in a file without.
    pub labels: Vec<f32>,
    /// The dense columns, each `[rows]`; 0 where missing.
    pub dense: Vec<Vec<i32>>,
    /// The categorical columns, each `[rows]`; 0 where missing.
    pub categories: Vec<Vec<u32>>,
    /// Which fields are missing, `[rows]`: a bit for each dense column, then one for each
    /// categorical one, 64 at most.
    pub missing: Vec<u64>,
    /// Line of each row in its file, `[rows]`, from 1.
    pub lines: Vec<u64>,
}

impl IntegerColumns {
    /// No rows of so many dense and categorical columns, with room for `rows`.
    pub(crate) fn with_room(dense: usize, categorical: usize, rows: usize) -> Self {
        Self {
            labels: Vec::with_capacity(rows),
            dense: (0..dense).map(|_| Vec::with_capacity(rows)).collect(),
            categories: (0..categorical).map(|_| Vec::with_capacity(rows)).collect(),
            missing: Vec::with_capacity(rows),
            lines: Vec::with_capacity(rows),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Forgets the rows and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.labels.clear();
        self.dense.iter_mut().for_each(Vec::clear);
        self.categories.iter_mut().for_each(Vec::clear);
        self.missing.clear();
        self.lines.clear();
    }

    /// The values of dense column `column`.
    pub(crate) fn dense_column(&self, column: usize) -> impl Iterator<Item = Option<i32>> {
        let values = self.dense[column].iter().zip(&self.missing);
        values.map(move |(&value, missing)| (missing >> column & 1 == 0).then_some(value))
    }

    /// The categories of column `column`.
    pub(crate) fn category_column(&self, column: usize) -> impl Iterator<Item = Option<i64>> {
        let values = self.categories[column].iter().zip(&self.missing);
        let bit = self.dense.len() + column;
        values.map(move |(&value, missing)| (missing >> bit & 1 == 0).then_some(i64::from(value)))
    }

    /// Dense value `row` of column `column`, NaN where missing.
    #[inline]
    pub(crate) fn dense(&self, row: usize, column: usize) -> f64 {
        let missing = self.missing[row] >> column & 1 == 1;
        if missing { f64::NAN } else { f64::from(self.dense[column][row]) }
    }

    /// Category `row` of column `column`.
    #[inline]
    pub(crate) fn category(&self, row: usize, column: usize) -> Option<i64> {
        let missing = self.missing[row] >> (self.dense.len() + column) & 1 == 1;
        (!missing).then(|| i64::from(self.categories[column][row]))
    }

    /// Writes row `row` into `into`.
    pub(crate) fn read(&self, row: usize, into: &mut ParsedRow) {
        into.clear();
        into.line = self.lines[row];
        into.label = self.labels[row];
        into.dense.extend((0..self.dense.len()).map(|column| self.dense(row, column)));
        into.categories.extend((0..self.categories.len()).map(|column| self.category(row, column)));
        into.ends.extend(1..=self.categories.len());
    }
}
