//! Rows of integers in columns, which are the output of the fastest parser.

use crate::parse::parsed_row::ParsedRow;

/// Rows in columns, where every field is one integer or missing. This form is used for Criteo's
/// layout, whose fields all fit into 32 bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntegerColumns {
    /// Labels, `[rows]`; NaN if the file has no labels.
    pub labels: Vec<f32>,
    /// Values of each dense column, `[rows]`; 0 for missing values.
    pub dense: Vec<Vec<i32>>,
    /// Values of each categorical column, `[rows]`; 0 for missing values.
    pub categories: Vec<Vec<u32>>,
    /// Bit mask of the missing fields of each row, `[rows]`. The first bits are the dense columns,
    /// followed by the categorical columns, at most 64 in total.
    pub missing: Vec<u64>,
    /// Line number of each row, `[rows]`, counted from 1.
    pub lines: Vec<u64>,
}

impl IntegerColumns {
    /// Creates empty columns with capacity for `rows` rows.
    pub(crate) fn with_room(dense: usize, categorical: usize, rows: usize) -> Self {
        Self {
            labels: Vec::with_capacity(rows),
            dense: (0..dense).map(|_| Vec::with_capacity(rows)).collect(),
            categories: (0..categorical).map(|_| Vec::with_capacity(rows)).collect(),
            missing: Vec::with_capacity(rows),
            lines: Vec::with_capacity(rows),
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether the columns are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Removes all rows and keeps the allocations.
    pub(crate) fn clear(&mut self) {
        self.labels.clear();
        self.dense.iter_mut().for_each(Vec::clear);
        self.categories.iter_mut().for_each(Vec::clear);
        self.missing.clear();
        self.lines.clear();
    }

    /// Iterates over the values of dense column `column`.
    pub(crate) fn dense_column(&self, column: usize) -> impl Iterator<Item = Option<i32>> {
        let values = self.dense[column].iter().zip(&self.missing);
        values.map(move |(&value, missing)| (missing >> column & 1 == 0).then_some(value))
    }

    /// Iterates over the categories of categorical column `column`.
    pub(crate) fn category_column(&self, column: usize) -> impl Iterator<Item = Option<i64>> {
        let values = self.categories[column].iter().zip(&self.missing);
        let bit = self.dense.len() + column;
        values.map(move |(&value, missing)| (missing >> bit & 1 == 0).then_some(i64::from(value)))
    }

    /// Returns the dense value of column `column` in row `row`; NaN if it is missing.
    #[inline]
    pub(crate) fn dense(&self, row: usize, column: usize) -> f64 {
        let missing = self.missing[row] >> column & 1 == 1;
        if missing { f64::NAN } else { f64::from(self.dense[column][row]) }
    }

    /// Returns the category of column `column` in row `row`, or `None` if it is missing.
    #[inline]
    pub(crate) fn category(&self, row: usize, column: usize) -> Option<i64> {
        let missing = self.missing[row] >> (self.dense.len() + column) & 1 == 1;
        (!missing).then(|| i64::from(self.categories[column][row]))
    }

    /// Copies row `row` into `into`.
    pub(crate) fn read(&self, row: usize, into: &mut ParsedRow) {
        into.clear();
        into.line = self.lines[row];
        into.label = self.labels[row];
        into.dense.extend((0..self.dense.len()).map(|column| self.dense(row, column)));
        into.categories.extend((0..self.categories.len()).map(|column| self.category(row, column)));
        into.ends.extend(1..=self.categories.len());
    }
}
