//! Text files to blocks of whole records: lines of separated fields, or quoted CSV.
//!
//! Tab-separated text knows no quotes; CSV follows RFC 4180. Line ends are `\n` or `\r\n`, the last may
//! be missing, a byte-order mark is skipped, and blank lines are no records. What the fields mean is
//! `convert`'s.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;

use crate::error::Error;
use crate::layout::Layout;

/// Text in a block, about.
const BLOCK_BYTES: usize = 1 << 20;
/// The longest record there may be.
const RECORD_BYTES: usize = 16 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A run of whole records of one file.
pub(crate) struct Block {
    /// Index of the input.
    pub file: usize,
    /// Its name.
    pub name: Arc<str>,
    pub layout: Arc<Layout>,
    pub body: Body,
}

/// The records of a block.
pub(crate) enum Body {
    /// Tab-separated lines; `first_line` is the number of the first.
    Lines { first_line: u64, text: Vec<u8> },
    /// Parsed CSV records.
    Records(Records),
    /// Rows of a Parquet file; `first_row` of them came before.
    Table { first_row: u64, batch: RecordBatch },
}

/// CSV records, fields one after the other.
#[derive(Default)]
pub(crate) struct Records {
    text: Vec<u8>,
    /// End of each field in `text`.
    field_ends: Vec<u32>,
    /// Per record the end in `field_ends` and the line.
    records: Vec<(u32, u64)>,
}

impl Records {
    fn push(&mut self, record: &csv::ByteRecord, line: u64) {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(record.as_slice());
        let mut end = start;
        self.field_ends.extend(record.iter().map(|field| {
            end += field.len() as u32;
            end
        }));
        self.records.push((self.field_ends.len() as u32, line));
    }

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
}

/// Calls `take(line, text, field ranges)` for each line of tab-separated `text` that is not blank.
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
            end_line(text, (start, at), (&mut fields, line), &mut take);
            fields.clear();
            (line, start) = (line + 1, at + 1);
        }
    }
    end_line(text, (start, text.len() as u32), (&mut fields, line), &mut take);
}

fn end_line(
    text: &[u8],
    (start, mut end): (u32, u32),
    (fields, line): (&mut Vec<(u32, u32)>, u64),
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

/// How the first record of a file is used.
pub(crate) enum First {
    /// It names the columns and is not data.
    Header(Layout),
    /// It is data.
    Data(Layout),
}

impl First {
    fn split(self) -> (Arc<Layout>, bool) {
        match self {
            Self::Header(layout) => (Arc::new(layout), true),
            Self::Data(layout) => (Arc::new(layout), false),
        }
    }
}

/// Sends the lines of `read` in blocks; `first` sees the fields of the first line. Stops when `send`
/// says `false`.
pub(crate) fn send_lines(
    path: &Path,
    mut read: impl Read,
    first: &mut dyn FnMut(&[String]) -> Result<First, Error>,
    send: &mut dyn FnMut(Arc<Layout>, Body) -> bool,
) -> Result<(), Error> {
    let mut layout: Option<Arc<Layout>> = None;
    let mut line = 1;
    let mut text = Vec::with_capacity(BLOCK_BYTES + 4096);
    loop {
        let more = fill(&mut read, &mut text).map_err(Error::read(path))?;
        let end = match (more, text.iter().rposition(|&byte| byte == b'\n')) {
            (false, _) => text.len(),
            (true, Some(at)) => at + 1,
            (true, None) if text.len() < RECORD_BYTES => continue,
            (true, None) => {
                let limit = RECORD_BYTES as u64;
                return Err(Error::RecordTooLong { path: path.to_owned(), line, limit });
            }
        };
        let mut rest = Vec::with_capacity(BLOCK_BYTES + 4096);
        rest.extend_from_slice(&text[end..]);
        text.truncate(end);
        if layout.is_none() {
            if text.starts_with(BYTE_ORDER_MARK) {
                text.drain(..BYTE_ORDER_MARK.len());
            }
            let (head, bytes, lines) = head_line(&text);
            if let Some(head) = head {
                let (found, is_header) = first(&head)?.split();
                layout = Some(found);
                if is_header {
                    text.drain(..bytes);
                    line += lines;
                }
            }
        }
        let lines = text.iter().filter(|&&byte| byte == b'\n').count() as u64;
        if let Some(layout) = &layout
            && !text.is_empty()
            && !send(Arc::clone(layout), Body::Lines { first_line: line, text })
        {
            return Ok(());
        }
        line += lines;
        if !more {
            return Ok(());
        }
        text = rest;
    }
}

/// The fields of the first line that is not blank, with the bytes and lines up to its end.
fn head_line(text: &[u8]) -> (Option<Vec<String>>, usize, u64) {
    let (mut bytes, mut lines) = (0, 0);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        bytes += line.len();
        lines += 1;
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        if !content.is_empty() {
            return (Some(content.split(|&byte| byte == b'\t').map(name).collect()), bytes, lines);
        }
    }
    (None, bytes, lines)
}

fn name(field: &[u8]) -> String {
    String::from_utf8_lossy(field.trim_ascii()).into_owned()
}

/// Appends up to a block; `false` at the end of the file.
fn fill(read: &mut impl Read, text: &mut Vec<u8>) -> io::Result<bool> {
    let wanted = BLOCK_BYTES as u64;
    let got = read.take(wanted).read_to_end(text)?;
    Ok(got as u64 == wanted)
}

/// Sends the CSV records of `read` in blocks; `first` sees the fields of the first record.
pub(crate) fn send_records(
    path: &Path,
    read: impl Read,
    first: &mut dyn FnMut(&[String]) -> Result<First, Error>,
    send: &mut dyn FnMut(Arc<Layout>, Body) -> bool,
) -> Result<(), Error> {
    let record_start = Arc::new(AtomicU64::new(0));
    let bounded = Bounded { inner: read, read: 0, record_start: Arc::clone(&record_start) };
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bounded);
    let mut layout: Option<Arc<Layout>> = None;
    let mut record = csv::ByteRecord::new();
    let mut records = Records::default();
    loop {
        // The line of an unclosed quote is where its record starts.
        let line = reader.position().line();
        let more = reader.read_byte_record(&mut record).map_err(|e| csv_error(e, path, line))?;
        record_start.store(reader.position().byte(), Ordering::Relaxed);
        if !more {
            break;
        }
        let line = record.position().map_or(line, csv::Position::line);
        if layout.is_none() {
            let fields: Vec<String> = record.iter().map(name).collect();
            let (found, is_header) = first(&fields)?.split();
            layout = Some(found);
            if is_header {
                continue;
            }
        }
        records.push(&record, line);
        if let Some(layout) = &layout
            && records.text.len() >= BLOCK_BYTES
            && !send(Arc::clone(layout), Body::Records(std::mem::take(&mut records)))
        {
            return Ok(());
        }
    }
    if let (Some(layout), false) = (layout, records.records.is_empty()) {
        send(layout, Body::Records(records));
    }
    Ok(())
}

fn csv_error(error: csv::Error, path: &Path, line: u64) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(source) if is_too_long(&source) => {
            Error::RecordTooLong { path: path.to_owned(), line, limit: RECORD_BYTES as u64 }
        }
        csv::ErrorKind::Io(source) => Error::read(path)(source),
        other => {
            Error::read(path)(io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}")))
        }
    }
}

fn is_too_long(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<TooLong>)
}

/// Stops a record that never ends, such as one with an unclosed quote, before it fills the memory.
struct Bounded<R> {
    inner: R,
    read: u64,
    /// Where the record being read starts; written by the reader's owner.
    record_start: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error)]
#[error("record too long")]
struct TooLong;

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read - self.record_start.load(Ordering::Relaxed) > RECORD_BYTES as u64 {
            return Err(io::Error::other(TooLong));
        }
        let got = self.inner.read(buffer)?;
        self.read += got as u64;
        Ok(got)
    }
}
