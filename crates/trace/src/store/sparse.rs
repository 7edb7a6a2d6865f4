//! Defines a column in which only some rows have a value.

use super::reserve;

/// A column in which only some rows have a value, as pairs of row and value in ascending order of
/// rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse<T> {
    rows: Vec<u32>,
    values: Vec<T>,
}

impl<T> Sparse<T> {
    /// Returns the value of a row, by binary search.
    pub fn get(&self, row: u32) -> Option<&T> {
        self.rows.binary_search(&row).ok().map(|at| &self.values[at])
    }

    /// Returns the value of a row, faster than [`Sparse::get`] if rows are requested in ascending
    /// order. `place` stores the position of the last result, and the caller sets it to 0 at the
    /// start.
    pub fn get_near(&self, row: u32, place: &mut usize) -> Option<&T> {
        // Binary search is needed only if the caller jumped backwards or skipped a row with a
        // value.
        let is_behind = *place == 0 || self.rows[*place - 1] < row;
        if !is_behind || self.rows.get(*place).is_some_and(|next| *next < row) {
            *place = self.rows.partition_point(|other| *other < row);
        }
        self.rows.get(*place).filter(|next| **next == row)?;
        *place += 1;
        Some(&self.values[*place - 1])
    }

    /// Appends the value of a row.
    ///
    /// # Panics
    /// Panics if `row` is not greater than the last row that has a value.
    pub fn push(&mut self, row: u32, value: T) {
        assert!(self.rows.last().is_none_or(|last| *last < row), "rows of a column must ascend");
        self.rows.push(row);
        self.values.push(value);
    }

    /// Appends a later part of the column. Row 0 of the part becomes row `first_row`.
    pub fn append(&mut self, later: &mut Self, first_row: u32) {
        if self.rows.is_empty() && first_row == 0 {
            std::mem::swap(self, later);
            return;
        }
        self.rows.extend(later.rows.drain(..).map(|row| first_row + row));
        self.values.append(&mut later.values);
    }

    /// Reserves memory for all rows of the trace, of which the column holds the share `share`.
    pub(crate) fn reserve(&mut self, share: f64) {
        reserve::extrapolate(&mut self.rows, share);
        reserve::extrapolate(&mut self.values, share);
    }

    /// Removes rows of the trace, which are given in ascending order. The rows after a removed one
    /// move up, so their numbers decrease.
    pub(crate) fn remove(&mut self, removed: &[u32]) {
        let mut kept = 0;
        for at in 0..self.rows.len() {
            let row = self.rows[at];
            // The rows removed before a row are the distance by which the row moves up.
            let before = removed.partition_point(|other| *other < row);
            if removed.get(before) == Some(&row) {
                continue;
            }
            self.rows[kept] = row - before as u32;
            self.values.swap(kept, at);
            kept += 1;
        }
        self.rows.truncate(kept);
        self.values.truncate(kept);
    }

    /// Renumbers the rows: row `n` becomes row `rows[n]`. The new rows must be distinct.
    pub(crate) fn renumber(&mut self, rows: &[u32]) {
        let mut pairs: Vec<(u32, T)> = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|row| rows[row as usize])
            .zip(std::mem::take(&mut self.values))
            .collect();
        pairs.sort_unstable_by_key(|(row, _)| *row);
        (self.rows, self.values) = pairs.into_iter().unzip();
    }

    /// Iterates over the rows that have a value, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().copied().zip(&self.values)
    }

    /// Iterates over the rows that have a value, with mutable access to the values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.rows.iter().copied().zip(&mut self.values)
    }

    /// Returns the number of rows that have a value.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the column has no value in any row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), values: Vec::new() }
    }
}
