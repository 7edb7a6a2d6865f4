//! A block of prepared rows, column by column. Knows nothing of where they come from or go.

use std::borrow::Cow;

/// One categorical column of a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Categories {
    /// Raw categories, or exact ids; one per row, or `ends` says how many.
    pub values: Vec<i64>,
    /// For a list column the end of each row's values, `[rows]`; `None` for one value per row.
    pub ends: Option<Vec<u32>>,
    /// Whether values below 0 are bit patterns of ids from 2^63 on.
    pub unsigned: bool,
}

/// Rows in columns, all of the same number of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreparedRows {
    /// Labels, `[rows]`.
    pub labels: Vec<f32>,
    /// Dense columns, each `[rows]`, transformed.
    pub dense: Vec<Vec<f32>>,
    pub categorical: Vec<Categories>,
    /// Line of each row in its file, `[rows]`; may be empty where nobody asks.
    pub lines: Vec<u64>,
}

impl PreparedRows {
    /// No rows of `dense` columns and as many categorical columns as `lists`, which says which hold
    /// lists.
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

    /// Appends the rows `range` of `other`, which has the same columns.
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
    /// All of it, borrowed.
    pub(crate) fn bags(&self) -> ColumnBags<'_> {
        let ends = self.ends.as_deref().map(Cow::Borrowed);
        ColumnBags { values: &self.values, ends, unsigned: self.unsigned }
    }

    /// The values of row `row`.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[i64] {
        row_values(&self.values, self.ends.as_deref(), row)
    }

    /// Appends rows to a list column, `map` applied to each value.
    pub(crate) fn append(&mut self, from: &ColumnBags<'_>, map: impl Fn(i64) -> i64) {
        let shift = self.values.len() as u32;
        self.values.extend(from.values.iter().map(|&value| map(value)));
        if let (Some(into), Some(ends)) = (&mut self.ends, &from.ends) {
            into.extend(ends.iter().map(|end| end + shift));
        }
    }

    /// Appends rows to a list column without the values that `keep` refuses.
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

/// One categorical column of a block that is kept elsewhere.
pub(crate) struct ColumnBags<'a> {
    pub values: &'a [i64],
    /// As in [`Categories`].
    pub ends: Option<Cow<'a, [u32]>>,
    /// As in [`Categories`].
    pub unsigned: bool,
}

impl ColumnBags<'_> {
    /// The values of row `row`.
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
