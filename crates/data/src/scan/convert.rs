//! Converts one block into rows. Counts ids, and skips and counts malformed records.
//!
//! The conversion is generic over the consumer of rows ([`RowSink`]), so that fitting, writing and
//! scoring share all of the reading.

use crate::error::Error;
use crate::loss::{Losses, RowRefusal};
use crate::parse::block::{LineStart, RecordSink};
use crate::parse::ids::{self, RefusedId};
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::WantedColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::scan::limit::ReadProgress;
use crate::scan::record_block::RecordBlock;

/// The result of converting a block: the sink with its rows, and what was left out.
pub(crate) struct ConvertedBlock<A> {
    pub file: usize,
    /// Start of the block in its input, if reading can resume there.
    pub start: Option<LineStart>,
    /// Read progress at the end of the block.
    pub progress: ReadProgress,
    pub sink: A,
    pub rows: u64,
    pub losses: Losses,
    /// Error of the first row that must not be skipped.
    pub refused: Option<Error>,
}

/// Converts `block` and passes each row to `sink`.
pub(crate) fn convert<A: RowSink>(
    block: &RecordBlock,
    wanted: &WantedColumns,
    sink: A,
) -> ConvertedBlock<A> {
    let mut output = BlockConverter {
        name: &block.name,
        wanted,
        row: ParsedRow::default(),
        parsed: ConvertedBlock {
            file: block.file,
            start: block.records.start(),
            progress: block.progress,
            sink,
            rows: 0,
            losses: Losses::default(),
            refused: None,
        },
    };
    block.records.send_rows(block.place(wanted), &mut output);
    output.parsed
}

/// Receives the rows of a block, counts ids and malformed records, and passes valid rows to the
/// sink.
struct BlockConverter<'a, A> {
    name: &'a str,
    wanted: &'a WantedColumns,
    row: ParsedRow,
    parsed: ConvertedBlock<A>,
}

impl<A: RowSink> RecordSink for BlockConverter<'_, A> {
    /// Takes all rows at once unless some are left out, which is rare.
    fn take_columns(&mut self, given: ParsedColumns<'_>) {
        let (counts, counted) = (&mut self.parsed.losses.ids, &self.wanted.counted);
        if given.refused.is_empty()
            && self.wanted.time.is_none()
            && ids::count_columns(counts, &given.categorical, counted)
            && self.parsed.sink.accept_columns(&given)
        {
            self.parsed.rows += given.len() as u64;
            return;
        }
        // The ids may have been counted as columns already, and are counted again row by row.
        self.parsed.losses.ids.clear();
        let mut refused = given.refused.iter().peekable();
        for index in 0..given.len() {
            let problem = refused.next_if(|(row, _)| *row == index);
            self.take_row(given.first_line + index as u64, &mut |row| match problem {
                Some((_, problem)) => Err(problem.clone()),
                None => {
                    given.read(index, row);
                    Ok(())
                }
            });
        }
    }

    fn take_row(
        &mut self,
        line: u64,
        read: &mut dyn FnMut(&mut ParsedRow) -> Result<(), RowRefusal>,
    ) {
        self.row.clear();
        self.row.line = line;
        let read = read(&mut self.row);
        let counted = &self.wanted.counted;
        if read.is_ok()
            && let Some(refused) = ids::find_refused(&self.row, counted)
        {
            self.refuse(refused);
            return;
        }
        match read.and_then(|()| Ok(self.parsed.sink.accept_row(&self.row)?)) {
            Ok(()) => {
                self.parsed.rows += 1;
                ids::count_row(&mut self.parsed.losses.ids, &self.row, counted);
            }
            Err(reason) => self.parsed.losses.count(self.name, line, reason),
        }
    }

    fn take_integers(&mut self, rows: &mut IntegerColumns) {
        self.parsed.rows += rows.len() as u64;
        self.parsed.sink.accept_integers(rows);
        rows.clear();
    }
}

impl<A> BlockConverter<'_, A> {
    #[cold]
    fn refuse(&mut self, refused: RefusedId) {
        let RefusedId { column, id, rows } = refused;
        let place = format!("{}:{}", self.name, self.row.line);
        let column = self.wanted.categorical[column].column.clone();
        self.parsed.refused.get_or_insert(Error::IdOutOfRange { place, column, id, rows });
    }
}
