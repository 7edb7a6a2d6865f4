//! Splits tab-separated text into blocks of whole lines.
//!
//! The format does not have quotes. Lines end with `\n` or `\r\n`, the last line may lack its end,
//! and blank lines are skipped. The module `csv` reads quoted text, and `text_record` parses the
//! fields. Lines in Criteo's layout take the fast path of `criteo_tsv`.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use schema::file_format;

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;
use crate::loss::RowRefusal;
use crate::parse::block::{BlockPace, CellText, LineStart, RecordSink, Records};
use crate::parse::criteo_tsv::{self, LineForm, TextItem};
use crate::parse::field;
use crate::parse::header;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::{FieldLayout, PlacedColumns, TextRecord};
use crate::parse::reader::{FormatReader, InputReading, SendBlock};
use crate::parse::text_record;

/// Approximate size of a block of text, in bytes.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Largest number of bytes per read from a stream whose writer waits for answers, which is the
/// capacity of a pipe.
const ARRIVING_BYTES: usize = 64 << 10;
/// Largest length of a record, in bytes.
pub(crate) const RECORD_BYTES: usize = 16 << 20;

/// Calls `take(line, text, field ranges)` for each non-blank line of tab-separated `text`.
pub(crate) fn for_each_line(
    text: &[u8],
    first_line: u64,
    mut take: impl FnMut(u64, &[u8], &[(u32, u32)]),
) {
    let mut fields: Vec<(u32, u32)> = Vec::new();
    let (mut line, mut start) = (first_line, 0u32);
    for (at, &byte) in text.iter().enumerate() {
        if byte > b'\t' && byte != b'\n' {
            continue;
        }
        let at = at as u32;
        if byte == b'\t' {
            fields.push((start, at));
            start = at + 1;
        } else if byte == b'\n' {
            end_line(text, start, at, &mut fields, line, &mut take);
            fields.clear();
            (line, start) = (line + 1, at + 1);
        }
    }
    end_line(text, start, text.len() as u32, &mut fields, line, &mut take);
}

fn end_line(
    text: &[u8],
    start: u32,
    mut end: u32,
    fields: &mut Vec<(u32, u32)>,
    line: u64,
    take: &mut impl FnMut(u64, &[u8], &[(u32, u32)]),
) {
    if end > start && text[end as usize - 1] == b'\r' {
        end -= 1;
    }
    if fields.is_empty() && start == end {
        return;
    }
    fields.push((start, end));
    take(line, text, fields);
}

/// The start of a file, from which the positions of its columns are derived.
pub(crate) struct FileHead {
    /// Trimmed fields of the first record.
    pub fields: Vec<Vec<u8>>,
    /// Number of records in the first block by their number of fields.
    pub widths: BTreeMap<usize, u64>,
}

/// Role of the first record of a file, with the resulting layout.
pub(crate) enum FirstRecord {
    /// The record names the columns and is not a row.
    Header(FieldLayout),
    Data(FieldLayout),
}

impl FirstRecord {
    pub(crate) fn split(self) -> (Arc<FieldLayout>, bool) {
        match self {
            Self::Header(layout) => (Arc::new(layout), true),
            Self::Data(layout) => (Arc::new(layout), false),
        }
    }
}

/// The reader of tab-separated text.
pub(crate) struct TsvReader {
    /// Column names of files without a header. If the list is empty, the first line names the
    /// columns.
    pub names: Vec<String>,
}

impl FormatReader for TsvReader {
    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error> {
        let path = Path::new(input);
        let mut first = |head: &FileHead| interpret_first(&self.names, head, path, reading);
        let Some(place) = reading.from else {
            let (text, start) = open(input, reading.observer)?;
            return send_lines(path, reading.pace, text, start, &mut first, send);
        };
        // The layout is derived from the first line of the file.
        let mut layout = None;
        let (head, start) = open(input, &ReadObserver::default())?;
        send_lines(path, reading.pace, head, start, &mut first, &mut |found, _| {
            layout = Some(found);
            false
        })?;
        let Some(layout) = layout else { return Ok(()) };
        let rest = decompress::open_at(input, place.offset, reading.observer)?;
        let mut first = |_: &FileHead| Ok(FirstRecord::Data(FieldLayout::clone(&layout)));
        send_lines(path, reading.pace, rest, place, &mut first, send)
    }
}

/// Derives the layout of a text file from its first record. `names` are its columns if it has no
/// header.
pub(crate) fn interpret_first(
    names: &[String],
    head: &FileHead,
    path: &Path,
    reading: &InputReading<'_>,
) -> Result<FirstRecord, Error> {
    let InputReading { wanted, label, .. } = *reading;
    if names.is_empty() {
        let layout = wanted.place_in_partition(&header::column_names(&head.fields), path, label)?;
        return Ok(FirstRecord::Header(FieldLayout { header: head.fields.clone(), ..layout }));
    }
    Ok(FirstRecord::Data(wanted.place_headerless(names, &head.widths, path, label)?))
}

/// Opens the text of an input, skipping a byte-order mark, and returns where it starts.
///
/// # Errors
/// Returns [`Error::OtherForm`] for anything but delimited text.
pub(crate) fn open(
    input: &str,
    observer: &ReadObserver,
) -> Result<(impl Read + Send + use<>, LineStart), Error> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let path = Path::new(input);
    let mut read = decompress::open(input, observer)?;
    let mut head =
        decompress::read_head(&mut read, file_format::HEAD_BYTES).map_err(Error::read(path))?;
    if head.is_empty() {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    if let Some(form) = detect_form(&head) {
        return Err(Error::OtherForm { path: path.to_owned(), form });
    }
    let mut place = LineStart { offset: 0, line: 1 };
    if head.starts_with(BYTE_ORDER_MARK) {
        head.drain(..BYTE_ORDER_MARK.len());
        place.offset = BYTE_ORDER_MARK.len() as u64;
    }
    Ok((Cursor::new(head).chain(read), place))
}

/// Describes the content of a file whose start shows that it is not delimited text.
fn detect_form(head: &[u8]) -> Option<&'static str> {
    // Blank text has no form, and its reader will find no rows. Text with delimiters is text, even
    // if a column is named PAR1.
    let is_text =
        !head.iter().any(|byte| *byte < b'\t') && head.iter().any(|byte| b",\t;|".contains(byte));
    if head.trim_ascii().is_empty() || is_text && !head.starts_with(b"<") {
        return detect_json(head);
    }
    let zeros = head.iter().filter(|&&byte| byte == 0).count();
    let binary = (8 * zeros > head.len()).then_some("binary data");
    file_format::describe_format(head).or_else(|| detect_json(head)).or(binary)
}

/// Detects JSON from the start of a file.
fn detect_json(head: &[u8]) -> Option<&'static str> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let is_next = |rest: &[u8], any: &[u8]| rest.first().is_none_or(|byte| any.contains(byte));
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    match head {
        [b'{', rest @ ..] if is_next(rest, b"\" \t\r\n}") => match line.last() {
            Some(b'}') => Some("JSON lines"),
            _ if line.len() < head.len() => Some("a JSON object"),
            _ => Some("JSON lines or a JSON object"),
        },
        [b'[', rest @ ..] if is_next(rest, b"{[\" \t\r\n]") => Some("a JSON array"),
        _ => None,
    }
}

/// Fails for text whose lines end with CR alone, which would be read as a single line.
pub(crate) fn check_line_ends(path: &Path, text: &[u8]) -> Result<(), Error> {
    let ends = || memchr::memchr_iter(b'\r', text).filter(|at| at + 1 < text.len()).count();
    if memchr::memchr(b'\n', text).is_none() && ends() > 0 {
        return Err(Error::CarriageReturns { path: path.to_owned() });
    }
    Ok(())
}

/// A block of whole lines.
struct LineBlock {
    start: LineStart,
    text: Vec<u8>,
}

impl Records for LineBlock {
    fn text_bytes(&self) -> usize {
        self.text.len()
    }

    fn start(&self) -> Option<LineStart> {
        Some(self.start)
    }

    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink) {
        match LineForm::recognize(columns) {
            Some(form) => criteo_rows(&self.text, self.start.line, form, columns, take),
            None => line_rows(&self.text, self.start.line, columns, take),
        }
    }

    fn for_each_refused(&self, layout: &FieldLayout, take: &mut dyn FnMut(u64, RowRefusal)) {
        for_each_line(&self.text, self.start.line, |line, text, fields| {
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
        for_each_line(&self.text, self.start.line, |_, text, fields| {
            send_cell(TextRecord { text, fields }, at, columns.layout, take);
        });
    }
}

/// Calls `take` with the field of categorical column `at`, unless the record is refused.
pub(crate) fn send_cell(
    record: TextRecord<'_>,
    at: usize,
    layout: &FieldLayout,
    take: &mut dyn FnMut(CellText<'_>),
) {
    if layout.check(record).is_ok() {
        take(CellText::Text(layout.field(record, layout.categorical[at])));
    }
}

fn line_rows(text: &[u8], first_line: u64, columns: PlacedColumns<'_>, take: &mut dyn RecordSink) {
    for_each_line(text, first_line, |line, text, fields| {
        take.take_row(line, &mut |row| {
            text_record::parse_record(row, columns, TextRecord { text, fields })
        });
    });
}

/// Sends lines in Criteo's layout: usual lines as integer columns, all others through the general
/// parser.
fn criteo_rows(
    text: &[u8],
    first_line: u64,
    form: LineForm,
    columns: PlacedColumns<'_>,
    take: &mut dyn RecordSink,
) {
    // Published lines have about 250 bytes, so one row per 200 bytes is enough room.
    let rows = text.len() / 200;
    let mut integers = IntegerColumns::with_room(criteo_tsv::DENSE, criteo_tsv::CATEGORICAL, rows);
    criteo_tsv::parse(text, first_line, form, &mut integers, |integers, found| {
        take.take_integers(integers);
        if let TextItem::Unusual(line, text) = found {
            line_rows(text, line, columns, take);
        }
    });
}

/// Sends the lines of `read`, which starts at `place`, in blocks until `send` returns `false`.
/// `first` interprets the first line.
fn send_lines(
    path: &Path,
    pace: BlockPace,
    mut read: impl Read,
    mut place: LineStart,
    first: &mut dyn FnMut(&FileHead) -> Result<FirstRecord, Error>,
    send: &mut SendBlock<'_>,
) -> Result<(), Error> {
    let mut layout: Option<Arc<FieldLayout>> = None;
    let mut text = Vec::with_capacity(BLOCK_BYTES + 4096);
    loop {
        let more = read_block(pace, &mut read, &mut text).map_err(Error::read(path))?;
        let end = match (more, memchr::memrchr(b'\n', &text)) {
            (false, _) => text.len(),
            (true, Some(at)) => at + 1,
            // The block does not end any line yet, so more text is read.
            (true, None) if text.len() < RECORD_BYTES => continue,
            (true, None) => {
                let limit = RECORD_BYTES as u64;
                let (path, line) = (path.to_owned(), place.line);
                return Err(Error::RecordTooLong { path, line, limit });
            }
        };
        let mut rest = Vec::with_capacity(BLOCK_BYTES + 4096);
        // The incomplete last line is carried over to the next block.
        rest.extend_from_slice(&text[end..]);
        text.truncate(end);
        if layout.is_none() {
            check_line_ends(path, &text)?;
            let (head, bytes, lines) = take_first_line(&text);
            if let Some(head) = head {
                let (found, is_header) =
                    first(&FileHead { fields: head, widths: count_widths(&text) })?.split();
                layout = Some(found);
                if is_header {
                    text.drain(..bytes);
                    place.offset += bytes as u64;
                    place.line += lines;
                }
            }
        }
        let next = LineStart {
            offset: place.offset + text.len() as u64,
            line: place.line + memchr::memchr_iter(b'\n', &text).count() as u64,
        };
        if let Some(layout) = &layout
            && !text.is_empty()
            && !send(Arc::clone(layout), Box::new(LineBlock { start: place, text }))
        {
            return Ok(());
        }
        place = next;
        if !more {
            return Ok(());
        }
        text = rest;
    }
}

/// Counts the lines of `text` by their number of fields.
fn count_widths(text: &[u8]) -> BTreeMap<usize, u64> {
    let mut widths = BTreeMap::new();
    for_each_line(text, 1, |_, _, fields| *widths.entry(fields.len()).or_default() += 1);
    widths
}

/// Returns the fields of the first non-blank line, with the number of bytes and lines up to its
/// end.
fn take_first_line(text: &[u8]) -> (Option<Vec<Vec<u8>>>, usize, u64) {
    let (mut bytes, mut lines) = (0, 0);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        bytes += line.len();
        lines += 1;
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        if !content.is_empty() {
            let fields = content.split(|&byte| byte == b'\t');
            let fields = fields.map(|text| field::trim(text).to_vec()).collect();
            return (Some(fields), bytes, lines);
        }
    }
    (None, bytes, lines)
}

/// Reads up to one block; returns `false` at the end of the file.
pub(crate) fn read_block(
    pace: BlockPace,
    read: &mut impl Read,
    text: &mut Vec<u8>,
) -> io::Result<bool> {
    match pace {
        BlockPace::FullBlocks => {
            let wanted = BLOCK_BYTES as u64;
            let got = read.take(wanted).read_to_end(text)?;
            // Fewer bytes than wanted arrive only at the end of the file.
            Ok(got as u64 == wanted)
        }
        BlockPace::AsItComes => {
            let start = text.len();
            text.resize(start + ARRIVING_BYTES, 0);
            let got = loop {
                match read.read(&mut text[start..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    got => break got,
                }
            };
            text.truncate(start + *got.as_ref().unwrap_or(&0));
            Ok(got? > 0)
        }
    }
}
