//! What takes rows: fitting and writing share every line of reading.

use crate::parse::integer_columns::IntegerColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;

/// Takes the rows of a block.
pub(crate) trait RowSink: Send {
    /// Takes one row, or says why it cannot be taken; a refused row leaves nothing behind.
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String>;

    /// Takes rows in columns, none of which is to be left out; `false`, and nothing taken, where
    /// they have to be looked at one by one.
    fn accept_columns(&mut self, _: &ParsedColumns<'_>) -> bool {
        false
    }

    /// Takes rows of integers, none of which is refused: every column has one value. `columns` may
    /// be left with anything in it.
    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        let mut row = ParsedRow::default();
        for index in 0..columns.len() {
            columns.read(index, &mut row);
            let taken = self.accept_row(&row);
            debug_assert_eq!(taken, Ok(()));
        }
    }
}
