//! A block of prepared rows stored as columns, which is the form in which rows are written to and
//! read from a dataset.

use std::borrow::Cow;

/// The ids of one categorical column for a block of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Categories {
    /// Raw categories or exact ids of all rows. Without `ends`, each row has exactly one.
    pub values: Vec<i64>,
    /// End of each row's values in `values`, `[rows]`, for a column of lists.
    pub ends: Option<Vec<u32>>,
    /// If true, values below 0 are the bit patterns of unsigned ids from 2^63 on.
    pub unsigned: bool,
}

/// A block of transformed rows, ready to be stored or turned into batches. All columns have the
/// same number of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreparedRows {
    /// Labels of the rows, `[rows]`.
    pub labels: Vec<f32>,
    /// Transformed values, each column `[rows]`.
    pub dense: Vec<Vec<f32>>,
    pub categorical: Vec<Categories>,
    /// Line number of each row in its file, `[rows]`; empty if line numbers are not needed.
    pub lines: Vec<u64>,
}

impl PreparedRows {
    /// Creates an empty block with `dense` dense columns and one categorical column per entry of
    /// `lists`, which tells which of them hold lists.
    #[must_use]
    pub fn empty(dense: usize, lists: &[bool]) -> Self {
        let categories =
            |list: &bool| Categories { ends: list.then(Vec::new), ..Categories::default() };
        Self {
            labels: Vec::new(),
            dense: vec![Vec::new(); dense],
            categorical: lists.iter().map(categories).collect(),
            lines: Vec::new(),
        }
    }

    /// Returns the number of rows in the block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Tells whether the block has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Appends rows `range` of `other`, which must have the same columns.
    pub(crate) fn extend(&mut self, other: &Self, range: std::ops::Range<usize>) {
        self.labels.extend_from_slice(&other.labels[range.clone()]);
        if !other.lines.is_empty() {
            self.lines.extend_from_slice(&other.lines[range.clone()]);
        }
        for (into, from) in self.dense.iter_mut().zip(&other.dense) {
            into.extend_from_slice(&from[range.clone()]);
        }
        for (into, from) in self.categorical.iter_mut().zip(&other.categorical) {
            into.extend(from, range.clone());
        }
    }
}

impl Categories {
    /// Borrows the whole column in the form of a decoded batch.
    pub(crate) fn bags(&self) -> ColumnBags<'_> {
        let ends = self.ends.as_deref().map(Cow::Borrowed);
        ColumnBags { values: &self.values, ends, unsigned: self.unsigned }
    }

    /// Returns the ids of row `row`.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[i64] {
        row_values(&self.values, self.ends.as_deref(), row)
    }

    /// Appends rows to a column of lists and applies `map` to each value.
    pub(crate) fn append(&mut self, from: &ColumnBags<'_>, map: impl Fn(i64) -> i64) {
        let shift = self.values.len() as u32;
        self.values.extend(from.values.iter().map(|&value| map(value)));
        if let (Some(into), Some(ends)) = (&mut self.ends, &from.ends) {
            into.extend(ends.iter().map(|end| end + shift));
        }
    }

    /// Appends rows to a column of lists and drops the values that `keep` rejects.
    pub(crate) fn append_some(&mut self, from: &ColumnBags<'_>, keep: impl Fn(i64) -> bool) {
        let Some(into) = &mut self.ends else { return };
        for row in 0..from.ends.as_ref().map_or(0, |ends| ends.len()) {
            self.values.extend(from.row(row).iter().copied().filter(|&value| keep(value)));
            into.push(self.values.len() as u32);
        }
    }

    fn extend(&mut self, from: &Self, range: std::ops::Range<usize>) {
        let (Some(into_ends), Some(ends)) = (&mut self.ends, &from.ends) else {
            self.values.extend_from_slice(&from.values[range]);
            return;
        };
        if range.is_empty() {
            return;
        }
        let start = if range.start == 0 { 0 } else { ends[range.start - 1] };
        let shift = self.values.len() as u32;
        into_ends.extend(ends[range.clone()].iter().map(|end| end - start + shift));
        self.values.extend_from_slice(&from.values[start as usize..ends[range.end - 1] as usize]);
    }
}

/// A borrowed view of one categorical column, either of [`Categories`] or of a decoded Parquet
/// batch.
pub(crate) struct ColumnBags<'a> {
    pub values: &'a [i64],
    pub ends: Option<Cow<'a, [u32]>>,
    pub unsigned: bool,
}

impl ColumnBags<'_> {
    /// Returns the ids of row `row`.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[i64] {
        row_values(self.values, self.ends.as_deref(), row)
    }
}

#[inline]
fn row_values<'a>(values: &'a [i64], ends: Option<&[u32]>, row: usize) -> &'a [i64] {
    match ends {
        None => &values[row..=row],
        Some(ends) => {
            let start = if row == 0 { 0 } else { ends[row - 1] as usize };
            &values[start..ends[row] as usize]
        }
    }
}
