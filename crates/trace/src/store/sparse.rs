//! A column that few rows have.

use super::room;

/// Values of some rows, in ascending order of row.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse<T> {
    rows: Vec<u32>,
    values: Vec<T>,
}

impl<T> Sparse<T> {
    /// The value of a row; a binary search.
    pub fn get(&self, row: u32) -> Option<&T> {
        self.rows.binary_search(&row).ok().map(|at| &self.values[at])
    }

    /// The value of a row, quick where rows are asked for in ascending order: `place` remembers
    /// where the last one was found, 0 at first.
    pub fn get_near(&self, row: u32, place: &mut usize) -> Option<&T> {
        let is_behind = *place == 0 || self.rows[*place - 1] < row;
        if !is_behind || self.rows.get(*place).is_some_and(|next| *next < row) {
            *place = self.rows.partition_point(|other| *other < row);
        }
        self.rows.get(*place).filter(|next| **next == row)?;
        *place += 1;
        Some(&self.values[*place - 1])
    }

    /// Adds the value of a row behind all others.
    ///
    /// # Panics
    /// If `row` does not follow the last one.
    pub fn push(&mut self, row: u32, value: T) {
        assert!(self.rows.last().is_none_or(|last| *last < row), "rows of a column ascend");
        self.rows.push(row);
        self.values.push(value);
    }

    /// Moves a later part, whose rows count from `first_row`, behind all others.
    pub fn append(&mut self, later: &mut Self, first_row: u32) {
        if self.rows.is_empty() && first_row == 0 {
            std::mem::swap(self, later);
            return;
        }
        self.rows.extend(later.rows.drain(..).map(|row| first_row + row));
        self.values.append(&mut later.values);
    }

    /// Takes memory for the whole, of which the rows are about the given share.
    pub(crate) fn make_room(&mut self, share: f64) {
        room::make(&mut self.rows, share);
        room::make(&mut self.values, share);
    }

    /// Removes rows of the whole trace, in ascending order; those behind move up.
    pub(crate) fn remove(&mut self, removed: &[u32]) {
        let mut kept = 0;
        for at in 0..self.rows.len() {
            let row = self.rows[at];
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

    /// Gives every value the row that `rows` has at the place of its row, all different.
    pub(crate) fn renumber(&mut self, rows: &[u32]) {
        let mut pairs: Vec<(u32, T)> = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|row| rows[row as usize])
            .zip(std::mem::take(&mut self.values))
            .collect();
        pairs.sort_unstable_by_key(|(row, _)| *row);
        (self.rows, self.values) = pairs.into_iter().unzip();
    }

    /// Rows and values.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().copied().zip(&self.values)
    }

    /// Rows and values, to change the values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.rows.iter().copied().zip(&mut self.values)
    }

    /// How many rows have a value.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row has one.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), values: Vec::new() }
    }
}
