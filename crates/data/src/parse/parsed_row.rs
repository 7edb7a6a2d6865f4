//! One parsed row, before its transform.

/// The parsed values of one record. The same value is reused for all records of a block.
#[derive(Default)]
pub(crate) struct ParsedRow {
    pub line: u64,
    /// Label of the row; NaN if the file has no labels.
    pub label: f32,
    /// Time by which rows are held out; NaN if missing or not needed.
    pub time: f64,
    pub dense: Vec<f64>,
    /// Categories of all columns, concatenated; `None` for missing ones.
    pub categories: Vec<Option<i64>>,
    /// End of each column's categories.
    pub ends: Vec<usize>,
    /// Column of each category that is the bit pattern of an unsigned id from 2^63 on; almost
    /// always empty.
    pub large: Vec<usize>,
}

impl ParsedRow {
    /// Clears the values of the previous record.
    pub(crate) fn clear(&mut self) {
        self.time = f64::NAN;
        self.dense.clear();
        self.categories.clear();
        self.ends.clear();
        self.large.clear();
    }

    /// Appends a category of column `column` whose text is `text`.
    #[inline]
    pub(crate) fn push_category(&mut self, column: usize, value: i64, text: &[u8]) {
        if is_large(value, text) {
            self.large.push(column);
        }
        self.categories.push(Some(value));
    }

    /// Returns the categories of one column.
    #[inline]
    pub(crate) fn column(&self, column: usize) -> &[Option<i64>] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.categories[start..self.ends[column]]
    }
}

/// Whether `value` is the bit pattern of the unsigned number written as `text`.
#[inline]
pub(crate) fn is_large(value: i64, text: &[u8]) -> bool {
    value < 0 && text.first() != Some(&b'-')
}
