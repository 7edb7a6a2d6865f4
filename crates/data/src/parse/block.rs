//! What readers make of inputs: blocks of records, which other threads turn into rows. Knows no
//! format.

use serde::{Deserialize, Serialize};

use crate::loss::RowRefusal;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::{FieldLayout, PlacedColumns};
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;

/// When a block of text is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPace {
    /// When it is full, or the input ends.
    FullBlocks,
    /// When something has arrived that ends a record: whoever wrote it waits for the answer.
    AsItComes,
}

/// Where a line starts in the decompressed content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineStart {
    /// Bytes before it.
    pub offset: u64,
    /// Its number, from 1.
    pub line: u64,
}

/// The records of a block, as their format has them.
pub(crate) trait Records: Send {
    /// Bytes of text in them; 0 where they are none.
    fn text_bytes(&self) -> usize {
        0
    }

    /// Where they start in their file, if reading can start there again.
    fn start(&self) -> Option<LineStart> {
        None
    }

    /// Hands on all rows, in order.
    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink);

    /// Calls `take` with the line of every record that no column can be read of.
    fn for_each_refused(&self, _layout: &FieldLayout, _take: &mut dyn FnMut(u64, RowRefusal)) {}

    /// Calls `take` with every cell of categorical column `at`; records that
    /// [`Self::for_each_refused`] gives are passed over.
    fn for_each_cell(
        &self,
        at: usize,
        columns: PlacedColumns<'_>,
        take: &mut dyn FnMut(CellText<'_>),
    );
}

/// What rows are handed on to: one by one, or in columns where a format has them so.
pub(crate) trait RecordSink {
    /// One row of line `line`, which `read` fills in, or says why it cannot.
    fn take_row(
        &mut self,
        line: u64,
        read: &mut dyn FnMut(&mut ParsedRow) -> Result<(), RowRefusal>,
    );

    /// Rows in columns, some of which may be refused.
    fn take_columns(&mut self, rows: ParsedColumns<'_>);

    /// Rows of integers, none refused; leaves `rows` empty.
    fn take_integers(&mut self, rows: &mut IntegerColumns);
}

/// A cell as text files show it.
pub(crate) enum CellText<'a> {
    Missing,
    Text(&'a [u8]),
    /// One element of a list.
    Element(&'a [u8]),
    /// A whole list, after its elements.
    List(&'a [u8]),
}
