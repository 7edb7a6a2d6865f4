//! Blocks of records, in which format readers hand their input to the threads that convert records
//! into rows. This module is independent of any format.

use serde::{Deserialize, Serialize};

use crate::loss::RowRefusal;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::{FieldLayout, PlacedColumns};
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;

/// The condition under which a reader passes on a block of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPace {
    /// The block is passed on when it is full or the input ends.
    FullBlocks,
    /// The block is passed on as soon as a complete record has arrived, because the writer of the
    /// stream waits for an answer.
    AsItComes,
}

/// Start of a line in the decompressed content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineStart {
    /// Offset of the line's first byte, in bytes.
    pub offset: u64,
    /// Number of the line, counted from 1.
    pub line: u64,
}

/// The records of a block in the representation of their format. Worker threads call it to convert
/// or profile the block.
pub(crate) trait Records: Send {
    /// Returns the bytes of text in the block; 0 for binary formats.
    fn text_bytes(&self) -> usize {
        0
    }

    /// Returns the start of the block in its file, or `None` if reading cannot resume there.
    fn start(&self) -> Option<LineStart> {
        None
    }

    /// Sends all rows to `take` in order.
    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink);

    /// Calls `take` with the line of every record that is refused before its fields are parsed.
    fn for_each_refused(&self, _layout: &FieldLayout, _take: &mut dyn FnMut(u64, RowRefusal)) {}

    /// Calls `take` with every cell of categorical column `at`, except those of records that
    /// [`Self::for_each_refused`] reports.
    fn for_each_cell(
        &self,
        at: usize,
        columns: PlacedColumns<'_>,
        take: &mut dyn FnMut(CellText<'_>),
    );
}

/// Receives the rows of a block in whichever representation the format provides: single rows,
/// parsed columns or integer columns.
pub(crate) trait RecordSink {
    /// Receives one row. `line` is the row's line number, and `read` fills the row in or returns
    /// the reason why it is refused.
    fn take_row(
        &mut self,
        line: u64,
        read: &mut dyn FnMut(&mut ParsedRow) -> Result<(), RowRefusal>,
    );

    /// Takes rows in columns, some of which may be refused.
    fn take_columns(&mut self, rows: ParsedColumns<'_>);

    /// Takes rows of integers, none of which is refused, and leaves `rows` empty.
    fn take_integers(&mut self, rows: &mut IntegerColumns);
}

/// The content of a cell in the form it would have in a text file.
pub(crate) enum CellText<'a> {
    Missing,
    Text(&'a [u8]),
    Element(&'a [u8]),
    /// The whole list, sent after its elements.
    List(&'a [u8]),
}
