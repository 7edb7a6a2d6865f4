//! One row between reading and transforming. Knows no format.

/// One record, read but not yet transformed. Reused from record to record.
#[derive(Default)]
pub(crate) struct ParsedRow {
    pub line: u64,
    /// NaN in a file without labels.
    pub label: f32,
    /// The time that parts training from held-out rows; NaN where missing or not asked for.
    pub time: f64,
    pub dense: Vec<f64>,
    /// Categories of all columns one after the other, `None` where missing.
    pub categories: Vec<Option<i64>>,
    /// End of each column's categories.
    pub ends: Vec<usize>,
    /// The column of each category that is the bit pattern of an id from 2^63 on: hardly ever any.
    pub large: Vec<usize>,
}

impl ParsedRow {
    /// Forgets the values of the previous record.
    pub(crate) fn clear(&mut self) {
        self.time = f64::NAN;
        self.dense.clear();
        self.categories.clear();
        self.ends.clear();
        self.large.clear();
    }

    /// Adds a category of column `column`, written as `text`.
    #[inline]
    pub(crate) fn push_category(&mut self, column: usize, value: i64, text: &[u8]) {
        if is_large(value, text) {
            self.large.push(column);
        }
        self.categories.push(Some(value));
    }

    /// The categories of one column.
    #[inline]
    pub(crate) fn column(&self, column: usize) -> &[Option<i64>] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.categories[start..self.ends[column]]
    }
}

/// Whether `value` is the bit pattern of the unsigned number `text`.
#[inline]
pub(crate) fn is_large(value: i64, text: &[u8]) -> bool {
    value < 0 && text.first() != Some(&b'-')
}
