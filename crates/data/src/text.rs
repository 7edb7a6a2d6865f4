//! Tab-separated text to blocks of whole lines.
//!
//! There are no quotes. Lines end with `\n` or `\r\n`, the last may have no end, and blank lines
//! are no records. Quoted text is `csv`'s, what the fields mean is `convert`'s.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};

use crate::csv::Records;
use crate::error::Error;
use crate::layout::Layout;
use crate::limit::Far;
use crate::npy;

/// Text in a block, about.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Most text taken at a time of a stream that is answered as it comes: what a pipe holds.
const ARRIVING_BYTES: usize = 64 << 10;
/// The longest record there may be.
pub(crate) const RECORD_BYTES: usize = 16 << 20;

/// When a block of text is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// When it is full, or the input ends.
    FullBlocks,
    /// When something has arrived that ends a record: whoever wrote it waits for the answer.
    AsItComes,
}

/// A run of whole records of one file.
pub(crate) struct Block {
    /// Index of the input.
    pub file: usize,
    /// Its name.
    pub name: Arc<str>,
    pub layout: Arc<Layout>,
    pub body: Body,
    /// How far reading has come at its end.
    pub far: Far,
}

/// Where a line starts in the decompressed content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Bytes before it.
    pub offset: u64,
    /// Its number, from 1.
    pub line: u64,
}

/// The records of a block.
pub(crate) enum Body {
    /// Tab-separated lines.
    Lines { start: Place, text: Vec<u8> },
    /// Parsed CSV records.
    Records(Records),
    /// Rows of a Parquet file; `first_row` of them came before.
    Table { first_row: u64, batch: RecordBatch },
    /// Rows of NumPy's arrays.
    Arrays(npy::Rows),
}

impl Body {
    /// Bytes of text in it.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Lines { text, .. } => text.len(),
            Self::Records(records) => records.text_bytes(),
            Self::Table { .. } | Self::Arrays(_) => 0,
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

/// What is seen of a file before its columns are known.
pub(crate) struct Head {
    /// The fields of the first record.
    pub fields: Vec<String>,
    /// How many records of the first block have so many fields.
    pub widths: BTreeMap<usize, u64>,
}

/// How the first record of a file is used.
pub(crate) enum First {
    /// It names the columns and is not data.
    Header(Layout),
    /// It is data.
    Data(Layout),
}

impl First {
    pub(crate) fn split(self) -> (Arc<Layout>, bool) {
        match self {
            Self::Header(layout) => (Arc::new(layout), true),
            Self::Data(layout) => (Arc::new(layout), false),
        }
    }
}

/// Sends the lines of `read`, which starts at `place`, in blocks; `first` sees the fields of the
/// first line. Stops when `send` says `false`.
pub(crate) fn send_lines(
    (path, pace): (&Path, Pace),
    (mut read, mut place): (impl Read, Place),
    first: &mut dyn FnMut(&Head) -> Result<First, Error>,
    send: &mut dyn FnMut(Arc<Layout>, Body) -> bool,
) -> Result<(), Error> {
    let mut layout: Option<Arc<Layout>> = None;
    let mut text = Vec::with_capacity(BLOCK_BYTES + 4096);
    loop {
        let more = fill(pace, &mut read, &mut text).map_err(Error::read(path))?;
        let end = match (more, memchr::memrchr(b'\n', &text)) {
            (false, _) => text.len(),
            (true, Some(at)) => at + 1,
            (true, None) if text.len() < RECORD_BYTES => continue,
            (true, None) => {
                let limit = RECORD_BYTES as u64;
                let (path, line) = (path.to_owned(), place.line);
                return Err(Error::RecordTooLong { path, line, limit });
            }
        };
        let mut rest = Vec::with_capacity(BLOCK_BYTES + 4096);
        rest.extend_from_slice(&text[end..]);
        text.truncate(end);
        if layout.is_none() {
            let (head, bytes, lines) = head_line(&text);
            if let Some(head) = head {
                let (found, is_header) =
                    first(&Head { fields: head, widths: widths(&text) })?.split();
                layout = Some(found);
                if is_header {
                    text.drain(..bytes);
                    place.offset += bytes as u64;
                    place.line += lines;
                }
            }
        }
        let next = Place {
            offset: place.offset + text.len() as u64,
            line: place.line + memchr::memchr_iter(b'\n', &text).count() as u64,
        };
        if let Some(layout) = &layout
            && !text.is_empty()
            && !send(Arc::clone(layout), Body::Lines { start: place, text })
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

/// How many lines of `text` have so many fields.
fn widths(text: &[u8]) -> BTreeMap<usize, u64> {
    let mut widths = BTreeMap::new();
    for_each_line(text, 1, |_, _, fields| *widths.entry(fields.len()).or_default() += 1);
    widths
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

/// The name of a column; what is not UTF-8 is taken as Latin-1.
pub(crate) fn name(field: &[u8]) -> String {
    let field = field.trim_ascii();
    match std::str::from_utf8(field) {
        Ok(text) => text.to_owned(),
        Err(_) => field.iter().map(|&byte| char::from(byte)).collect(),
    }
}

/// Appends up to a block; `false` at the end of the file.
pub(crate) fn fill(pace: Pace, read: &mut impl Read, text: &mut Vec<u8>) -> io::Result<bool> {
    match pace {
        Pace::FullBlocks => {
            let wanted = BLOCK_BYTES as u64;
            let got = read.take(wanted).read_to_end(text)?;
            Ok(got as u64 == wanted)
        }
        Pace::AsItComes => {
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
