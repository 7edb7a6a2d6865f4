//! Rows as an input gave them, in columns: read, not yet transformed. Knows no format.

use std::borrow::Cow;

use crate::loss::RowRefusal;
use crate::parse::parsed_row::ParsedRow;

/// Rows in columns, all of the same number of rows.
#[derive(Default)]
pub(crate) struct ParsedColumns<'a> {
    /// Line of the first row.
    pub first_line: u64,
    /// NaN in a file without labels.
    pub labels: Vec<f32>,
    /// The times that part training from held-out rows; empty where not asked for.
    pub times: Vec<f64>,
    /// Per column, NaN where missing.
    pub dense: Vec<Vec<f64>>,
    pub categorical: Vec<ParsedCategories<'a>>,
    /// Rows to be left out, in order.
    pub refused: Vec<(usize, RowRefusal)>,
}

/// One categorical column.
#[derive(Default)]
pub(crate) struct ParsedCategories<'a> {
    /// Of a column of single ones one per row; of lists those that are not missing.
    pub values: Cow<'a, [i64]>,
    /// Which of the single ones are missing; empty where none is.
    pub missing: Vec<bool>,
    /// For lists the end of each row's values.
    pub ends: Option<Vec<u32>>,
    /// Which of the values are bit patterns of ids from 2^63 on, in order.
    pub large: Vec<u32>,
}

impl ParsedCategories<'_> {
    /// The categories of a column of single ones.
    pub(crate) fn single(&self) -> impl Iterator<Item = Option<i64>> {
        let missing = |row: usize| self.missing.get(row).is_some_and(|&missing| missing);
        let values = self.values.iter().enumerate();
        values.map(move |(row, &value)| (!missing(row)).then_some(value))
    }

    /// Writes row `index` of column `column` into `row`.
    fn read(&self, index: usize, column: usize, row: &mut ParsedRow) {
        let start = match &self.ends {
            None => index,
            Some(_) if index == 0 => 0,
            Some(ends) => ends[index - 1] as usize,
        };
        let end = self.ends.as_ref().map_or(index + 1, |ends| ends[index] as usize);
        let large = self.large.partition_point(|&at| (at as usize) < start);
        let large = self.large[large..].iter().take_while(|&&at| (at as usize) < end);
        row.large.extend(large.map(|_| column));
        match &self.ends {
            None => {
                let missing = self.missing.get(index).is_some_and(|&missing| missing);
                row.categories.push((!missing).then_some(self.values[index]));
            }
            Some(_) => {
                let bag = &self.values[start..end];
                row.categories.extend(bag.iter().map(|&value| Some(value)));
            }
        }
        row.ends.push(row.categories.len());
    }
}

impl ParsedColumns<'_> {
    /// Rows, those to be left out included.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether the columns are lists just where `is_list` says so.
    pub(crate) fn has_lists(&self, is_list: &[bool]) -> bool {
        self.categorical.iter().map(|column| column.ends.is_some()).eq(is_list.iter().copied())
    }

    /// Writes row `index` into `row`.
    pub(crate) fn read(&self, index: usize, row: &mut ParsedRow) {
        row.clear();
        row.line = self.first_line + index as u64;
        row.label = self.labels[index];
        row.time = self.times.get(index).copied().unwrap_or(f64::NAN);
        row.dense.extend(self.dense.iter().map(|column| column[index]));
        for (at, column) in self.categorical.iter().enumerate() {
            column.read(index, at, row);
        }
    }
}
