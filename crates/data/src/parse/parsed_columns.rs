//! Parsed rows in columns, before their transform. Columnar formats produce them.

use std::borrow::Cow;

use crate::loss::RowRefusal;
use crate::parse::parsed_row::ParsedRow;

/// A block of parsed rows in columns. All columns have the same number of rows, including refused
/// ones.
#[derive(Default)]
pub(crate) struct ParsedColumns<'a> {
    pub first_line: u64,
    /// Labels of the rows; NaN if the file has no labels.
    pub labels: Vec<f32>,
    /// Times by which rows are held out; empty if they are not needed.
    pub times: Vec<f64>,
    /// Values of each dense column; NaN for missing values.
    pub dense: Vec<Vec<f64>>,
    pub categorical: Vec<ParsedCategories<'a>>,
    /// Refused rows with their reasons, in the order of the rows.
    pub refused: Vec<(usize, RowRefusal)>,
}

/// The parsed values of one categorical column.
#[derive(Default)]
pub(crate) struct ParsedCategories<'a> {
    /// Values of the column. Without lists, there is one value per row; with lists, only the values
    /// that are present.
    pub values: Cow<'a, [i64]>,
    /// Whether each row is missing, in a column without lists; empty if no row is missing.
    pub missing: Vec<bool>,
    /// End of each row's values, in a column of lists.
    pub ends: Option<Vec<u32>>,
    /// Indices of values that are bit patterns of unsigned ids from 2^63 on, in order.
    pub large: Vec<u32>,
}

impl ParsedCategories<'_> {
    /// Iterates over the categories of a column without lists.
    pub(crate) fn single(&self) -> impl Iterator<Item = Option<i64>> {
        let missing = |row: usize| self.missing.get(row).is_some_and(|&missing| missing);
        let values = self.values.iter().enumerate();
        values.map(move |(row, &value)| (!missing(row)).then_some(value))
    }

    /// Copies row `index` of categorical column `column` into `row`.
    fn read(&self, index: usize, column: usize, row: &mut ParsedRow) {
        let start = match &self.ends {
            None => index,
            Some(_) if index == 0 => 0,
            Some(ends) => ends[index - 1] as usize,
        };
        let end = self.ends.as_ref().map_or(index + 1, |ends| ends[index] as usize);
        // `large` is in ascending order, so the entries of this row are adjacent.
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
    /// Returns the number of rows, including refused ones.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Tells whether exactly the columns marked in `is_list` hold lists.
    pub(crate) fn has_lists(&self, is_list: &[bool]) -> bool {
        self.categorical.iter().map(|column| column.ends.is_some()).eq(is_list.iter().copied())
    }

    /// Copies row `index` into `row`.
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
