//! Splits quoted text, separated by commas (RFC 4180) or other delimiters, into blocks of records.
//!
//! CSV is parsed by our own code, because every record must know its line. Libraries that skip
//! blank lines, or end a record at the `\r` of `\r\n`, report a line that is too low. A quote opens
//! only at the start of a field, and text after the closing quote belongs to the field. Spaces
//! around fields and the `\r` of a line end are trimmed when fields are parsed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use schema::DataConfig;

use crate::error::Error;
use crate::loss::RowRefusal;
use crate::parse::block;
use crate::parse::block::{BlockPace, CellText, RecordSink};
use crate::parse::field;
use crate::parse::layout::{FieldLayout, PlacedColumns, TextRecord};
use crate::parse::reader::{FormatReader, InputReading, SendBlock};
use crate::parse::text::{self, BLOCK_BYTES, FileHead, FirstRecord, RECORD_BYTES, read_block};
use crate::parse::text_record;

/// The delimiter between fields and the quote around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Punctuation {
    /// The delimiter, of one or more characters.
    pub delimiter: Vec<u8>,
    pub quote: Option<u8>,
}

impl Punctuation {
    /// Returns the punctuation that a configuration describes.
    pub(crate) fn new(config: &DataConfig) -> Self {
        let delimiter = match config.delimiter.as_deref() {
            None | Some("") => b",",
            Some("tab" | "\\t") => &b"\t"[..],
            Some(text) => text.as_bytes(),
        };
        let quote = config.quote.as_deref().map_or(Some(b'"'), |text| text.bytes().next());
        Self { delimiter: delimiter.to_vec(), quote }
    }
}

/// Records whose fields are stored one after the other, without delimiters and quotes.
#[derive(Default)]
pub(crate) struct Records {
    text: Vec<u8>,
    /// End of each field in `text`.
    field_ends: Vec<u32>,
    /// For each record the end in `field_ends`, and its line.
    records: Vec<(u32, u64)>,
}

impl Records {
    /// Calls `take(line, text, field ranges)` for each record.
    pub(crate) fn for_each(&self, mut take: impl FnMut(u64, &[u8], &[(u32, u32)])) {
        let mut fields = Vec::new();
        let (mut first, mut start) = (0, 0);
        for &(last, line) in &self.records {
            fields.clear();
            for &end in &self.field_ends[first..last as usize] {
                fields.push((start, end));
                start = end;
            }
            first = last as usize;
            take(line, &self.text, &fields);
        }
    }

    /// Returns the trimmed fields of the first record.
    fn head(&self) -> Option<Vec<Vec<u8>>> {
        let (last, _) = self.records.first()?;
        let mut start = 0;
        let mut field = |&end: &u32| {
            let text = &self.text[start..end as usize];
            start = end as usize;
            field::trim(text).to_vec()
        };
        Some(self.field_ends[..*last as usize].iter().map(&mut field).collect())
    }

    /// Counts records by their number of fields.
    fn widths(&self) -> BTreeMap<usize, u64> {
        let (mut widths, mut before) = (BTreeMap::new(), 0);
        for &(end, _) in &self.records {
            *widths.entry((end - before) as usize).or_default() += 1;
            before = end;
        }
        widths
    }

    /// Removes the first record, which was a header.
    fn drop_head(&mut self) {
        let (fields, _) = self.records.remove(0);
        let bytes = self.field_ends[fields as usize - 1];
        self.text.drain(..bytes as usize);
        self.field_ends.drain(..fields as usize);
        self.field_ends.iter_mut().for_each(|end| *end -= bytes);
        self.records.iter_mut().for_each(|(end, _)| *end -= fields);
    }

    fn end_field(&mut self) {
        self.field_ends.push(self.text.len() as u32);
    }
}

/// State of the splitter between two bytes of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CsvState {
    /// Between records, where blank lines are skipped.
    Between,
    FieldStart,
    Plain,
    Quoted,
    /// After a quote within a quoted field, which ends the field or is the first half of a doubled
    /// quote.
    QuoteSeen,
}

/// Splits text into records incrementally; a record may span several pieces of text.
pub(crate) struct RecordSplitter {
    punctuation: Punctuation,
    /// Position in the records' text where the unquoted rest of the current field begins.
    bare: usize,
    state: CsvState,
    /// Line of the next byte.
    line: u64,
    /// Line where the current record starts.
    record_line: u64,
    records: Records,
}

impl RecordSplitter {
    pub(crate) fn new(punctuation: Punctuation) -> Self {
        let records = Records::default();
        Self { punctuation, bare: 0, state: CsvState::Between, line: 1, record_line: 1, records }
    }

    pub(crate) fn split(&mut self, mut text: &[u8]) {
        let (before, last) = match &self.punctuation.delimiter[..] {
            [before @ .., last] => (before.to_vec(), *last),
            [] => (Vec::new(), b','),
        };
        // Without a quote character, `quote` is a byte that never reaches the comparison.
        let quote = self.punctuation.quote.unwrap_or(b'\n');
        while let Some(&byte) = text.first() {
            let mut used = 1;
            match (self.state, byte) {
                (CsvState::Between, b'\n') => self.line += 1,
                (CsvState::Between, b'\r') => {}
                (CsvState::Between, _) => {
                    (self.state, self.record_line) = (CsvState::FieldStart, self.line);
                    self.bare = self.records.text.len();
                    used = 0;
                }
                (_, b'\n') if self.state != CsvState::Quoted => {
                    self.end_record();
                    self.line += 1;
                }
                (CsvState::FieldStart, byte) if byte == quote => self.state = CsvState::Quoted,
                (CsvState::QuoteSeen, byte) if byte == quote => {
                    self.records.text.push(quote);
                    self.state = CsvState::Quoted;
                }
                (CsvState::Quoted, byte) if byte == quote => {
                    self.state = CsvState::QuoteSeen;
                    self.bare = self.records.text.len();
                }
                (CsvState::Quoted, _) => {
                    used = memchr::memchr(quote, text).unwrap_or(text.len());
                    self.line += newlines(&text[..used]);
                    self.records.text.extend_from_slice(&text[..used]);
                }
                (_, byte) if byte == last && self.records.text[self.bare..].ends_with(&before) => {
                    self.records.text.truncate(self.records.text.len() - before.len());
                    self.records.end_field();
                    self.bare = self.records.text.len();
                    self.state = CsvState::FieldStart;
                }
                (CsvState::FieldStart | CsvState::Plain | CsvState::QuoteSeen, _) => {
                    self.state = CsvState::Plain;
                    // This byte is not a delimiter here, even if it equals the last byte of one.
                    let end = memchr::memchr2(last, b'\n', &text[1..]);
                    used = end.map_or(text.len(), |end| 1 + end);
                    self.records.text.extend_from_slice(&text[..used]);
                }
            }
            text = &text[used..];
        }
    }

    fn end_record(&mut self) {
        self.records.end_field();
        let fields = self.records.field_ends.len() as u32;
        self.records.records.push((fields, self.record_line));
        self.state = CsvState::Between;
    }

    /// Ends the record that is still open at the end of the text, if any.
    pub(crate) fn end(&mut self) {
        if self.state != CsvState::Between {
            self.end_record();
        }
    }

    /// Returns the complete records so far and keeps the open one.
    pub(crate) fn take(&mut self) -> Records {
        let Some(&(fields, _)) = self.records.records.last() else { return Records::default() };
        let bytes = self.records.field_ends[fields as usize - 1];
        let rest = Records {
            text: self.records.text.split_off(bytes as usize),
            field_ends: self.records.field_ends.split_off(fields as usize),
            records: Vec::new(),
        };
        let complete = std::mem::replace(&mut self.records, rest);
        self.records.field_ends.iter_mut().for_each(|end| *end -= bytes);
        // Positions move to the front together with the open record.
        self.bare = self.bare.saturating_sub(bytes as usize);
        complete
    }
}

fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// The reader of quoted text, such as CSV files.
pub(crate) struct Csv {
    /// Column names of files without a header. If the list is empty, the first record names the
    /// columns.
    pub names: Vec<String>,
    pub punctuation: Punctuation,
}

impl FormatReader for Csv {
    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error> {
        let path = Path::new(input);
        let (read, _) = text::open(input, reading.observer)?;
        let mut first = |head: &FileHead| text::interpret_first(&self.names, head, path, reading);
        let punctuation = self.punctuation.clone();
        send_records(path, reading.pace, read, punctuation, &mut first, send)
    }
}

impl block::Records for Records {
    fn text_bytes(&self) -> usize {
        self.text.len() + self.field_ends.len()
    }

    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink) {
        self.for_each(|line, text, fields| {
            take.take_row(line, &mut |row| {
                text_record::parse_record(row, columns, TextRecord { text, fields })
            });
        });
    }

    fn for_each_refused(&self, layout: &FieldLayout, take: &mut dyn FnMut(u64, RowRefusal)) {
        self.for_each(|line, text, fields| {
            if let Err(refusal) = layout.check(TextRecord { text, fields }) {
                take(line, refusal);
            }
        });
    }

    fn for_each_cell(
        &self,
        at: usize,
        columns: PlacedColumns<'_>,
        take: &mut dyn FnMut(CellText<'_>),
    ) {
        self.for_each(|_, text, fields| {
            text::send_cell(TextRecord { text, fields }, at, columns.layout, take);
        });
    }
}

/// Sends the records of `read` in blocks until `send` returns `false`. `first` interprets the first
/// record.
fn send_records(
    path: &Path,
    pace: BlockPace,
    mut read: impl Read,
    punctuation: Punctuation,
    first: &mut dyn FnMut(&FileHead) -> Result<FirstRecord, Error>,
    send: &mut SendBlock<'_>,
) -> Result<(), Error> {
    let mut layout: Option<Arc<FieldLayout>> = None;
    let mut splitter = RecordSplitter::new(punctuation);
    let mut text = Vec::with_capacity(BLOCK_BYTES);
    let mut more = true;
    while more {
        text.clear();
        more = read_block(pace, &mut read, &mut text).map_err(Error::read(path))?;
        if layout.is_none() {
            text::check_line_ends(path, &text)?;
        }
        splitter.split(&text);
        let (path, line) = (path.to_owned(), splitter.record_line);
        if !more {
            match splitter.state {
                CsvState::Between => {}
                CsvState::Quoted => return Err(Error::UnclosedQuote { path, line }),
                _ => splitter.end_record(),
            }
        }
        let mut records = splitter.take();
        // After `take`, only the open record is left in the splitter.
        if splitter.records.text.len() > RECORD_BYTES {
            return Err(Error::RecordTooLong { path, line, limit: RECORD_BYTES as u64 });
        }
        if let (None, Some(fields)) = (&layout, records.head()) {
            let head = FileHead { fields, widths: records.widths() };
            let (found, is_header) = first(&head)?.split();
            layout = Some(found);
            if is_header {
                records.drop_head();
            }
        }
        if let Some(layout) = &layout
            && !records.records.is_empty()
            && !send(Arc::clone(layout), Box::new(records))
        {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Punctuation, RecordSplitter, Records};

    const COMMA: (&str, Option<u8>) = (",", Some(b'"'));

    /// Formats records as `line:field|field`, splitting the text in pieces of `size` bytes.
    fn split((delimiter, quote): (&str, Option<u8>), text: &str, size: usize) -> Vec<String> {
        let delimiter = delimiter.as_bytes().to_vec();
        let mut splitter = RecordSplitter::new(Punctuation { delimiter, quote });
        let mut shown = Vec::new();
        let mut show = |records: Records| {
            records.for_each(|line, text, fields| {
                let field = |&(start, end): &(u32, u32)| {
                    String::from_utf8_lossy(&text[start as usize..end as usize]).into_owned()
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                shown.push(format!("{line}:{}", fields.join("|")));
            });
        };
        for piece in text.as_bytes().chunks(size) {
            splitter.split(piece);
            show(splitter.take());
        }
        splitter.end();
        show(splitter.take());
        shown
    }

    #[test]
    fn records_do_not_depend_on_the_pieces_of_text() {
        let text = "a,\"b,\"\"c\"\"\n\"d , \r\n\r\n\n\"\",x\"y\",\nlast,";
        let expected = ["1:a|b,\"c\"\nd | \r", "5:|x\"y\"|", "6:last|"];
        for size in 1..text.len() + 1 {
            assert_eq!(split(COMMA, text, size), expected, "pieces of {size}");
        }
    }

    #[test]
    fn delimiter_and_quote_are_configurable() {
        for (how, text, expected) in [
            (
                ("::", Some(b'"')),
                "1::Heat: a film::x:y\n2::\"a::b:\"::\n",
                vec!["1:1|Heat: a film|x:y", "2:2|a::b:|"],
            ),
            ((";", Some(b'\'')), "'a;''b'' ';c,d\n", vec!["1:a;'b' |c,d"]),
            (("\t", None), "\"a\tb\"\n", vec!["1:\"a|b\""]),
            (("|", Some(b'"')), "a||\n|b|\n", vec!["1:a||", "2:|b|"]),
        ] {
            for size in 1..=text.len() {
                assert_eq!(split(how, text, size), expected, "{how:?}, pieces of {size}");
            }
        }
    }
}
