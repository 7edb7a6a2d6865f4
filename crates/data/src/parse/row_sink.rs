//! The interface for consumers of parsed rows. Fitting, writing, scoring and statistics implement
//! it, so that they share the code that reads files.

use crate::parse::integer_columns::IntegerColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;

/// Consumes the rows of one block. Rows arrive in whichever form is fastest for the format.
pub(crate) trait RowSink: Send {
    /// Accepts one row, or returns the reason why it is malformed. A refused row must leave no
    /// trace.
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String>;

    /// Accepts rows in columns, none of which is refused. Returns `false`, without accepting any,
    /// if the rows have to be checked one by one.
    fn accept_columns(&mut self, _: &ParsedColumns<'_>) -> bool {
        false
    }

    /// Accepts rows of integers, none of which is refused. The content of `columns` is unspecified
    /// afterwards.
    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        let mut row = ParsedRow::default();
        for index in 0..columns.len() {
            columns.read(index, &mut row);
            let accepted = self.accept_row(&row);
            debug_assert_eq!(accepted, Ok(()));
        }
    }
}
