//! Rereads the text of single events from the source file, for data that no column stores.
//!
//! This module finds where an event's text ends, and `argument` parses the arguments in that text.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use schema::file_format::{self, FileFormat};
use serde_json::{Map, Value};

use super::argument;
use super::find;
use super::pump::{self, PumpShared};
use super::stream::{StreamPart, StreamReader, TextStream};
use super::whole_file;
use crate::Error;
use crate::format::blocks::Blocks;
use crate::store::{Encoding, Trace, TraceOrigin};

/// Largest number of bytes that are read for one event. Longer events are truncated.
const LONGEST: u64 = 64 << 20;
/// Size in bytes of the first read for an event of an uncompressed file.
const FIRST_READ: usize = 4 << 10;
const CHANGED: &str = "the file has changed since it was read";

/// Rows of one trace whose events are to be read again.
#[derive(Clone, Copy)]
pub struct TraceRows<'a> {
    pub trace: &'a Trace,
    pub rows: &'a [u32],
}

/// Returns the JSON texts of events as written in the file, in the order of `rows`.
///
/// # Cost
/// An uncompressed file needs one read per row, and a compressed file needs one pass.
/// # Errors
/// [`Error::NoText`] for standard input, for a trace that was never in a file, for a file without
/// JSON, and for a file that has changed since the trace was read. [`Error::Read`] if the file
/// cannot be read.
pub fn event_texts(trace: &Trace, rows: &[u32]) -> Result<Vec<String>, Error> {
    read_texts(&[TraceRows { trace, rows }]).remove(0)
}

/// Returns the arguments of events in the order of `rows`. The map of an event without arguments is
/// empty.
///
/// Non-finite numbers (`NaN`, `inf`) become null.
///
/// # Errors
/// The errors of [`event_texts`], and [`Error::NoText`] for an event that is not a JSON object.
pub fn arguments(trace: &Trace, rows: &[u32]) -> Result<Vec<Map<String, Value>>, Error> {
    selected_arguments(&[TraceRows { trace, rows }], &|_| true).remove(0)
}

/// Returns the `wanted` arguments of each trace of a job, as [`arguments`] does for one trace.
///
/// # Cost
/// The cost is that of [`event_texts`], except that one pass over a compressed file or archive
/// serves all its traces.
pub fn selected_arguments(
    all: &[TraceRows<'_>],
    wanted: &dyn Fn(&str) -> bool,
) -> Vec<Result<Vec<Map<String, Value>>, Error>> {
    let is_whole = |events: &&TraceRows<'_>| events.trace.origin.encoding == Encoding::Whole;
    let whole: Vec<TraceRows<'_>> = all.iter().filter(is_whole).copied().collect();
    let texts: Vec<TraceRows<'_>> =
        all.iter().filter(|events| !is_whole(events)).copied().collect();
    let mut from_whole_files = whole_arguments(&whole, wanted).into_iter();
    let mut from_texts = read_texts(&texts).into_iter().zip(&texts).map(|(texts, events)| {
        let path = &events.trace.origin.path;
        texts?.iter().map(|text| parse_arguments(text, path, wanted)).collect()
    });
    let next = |events: &TraceRows<'_>| match events.trace.origin.encoding {
        Encoding::Whole => from_whole_files.next(),
        Encoding::Json => from_texts.next(),
    };
    all.iter().filter_map(next).collect()
}

/// Parses the arguments in the text of an event. If the text is invalid JSON, it is repaired first.
fn parse_arguments(
    text: &str,
    path: &Path,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Map<String, Value>, Error> {
    let arguments =
        argument::arguments(text, wanted).or_else(|_| argument::arguments(&repaired(text), wanted));
    arguments.map_err(|error| Error::NoText {
        path: path.to_owned(),
        reason: format!("expected an event, got {error}"),
    })
}

/// Returns the arguments of traces whose format can only be read as a complete file.
fn whole_arguments(
    all: &[TraceRows<'_>],
    wanted: &dyn Fn(&str) -> bool,
) -> Vec<Result<Vec<Map<String, Value>>, Error>> {
    // Consecutive traces of one file share a single read of that file.
    let mut last: Option<(&TraceOrigin, Option<whole_file::Reread>)> = None;
    let mut results = Vec::with_capacity(all.len());
    for events in all {
        let origin = &events.trace.origin;
        if !last.as_ref().is_some_and(|(last, _)| *last == origin) {
            match whole_file::reread(origin) {
                Ok(file) => last = Some((origin, file)),
                Err(error) => {
                    results.push(Err(error));
                    continue;
                }
            }
        }
        let file = last.as_ref().and_then(|(_, file)| file.as_ref());
        let mut arguments = arguments_in_whole_file(file, events);
        arguments.iter_mut().flatten().for_each(|arguments| arguments.retain(|key, _| wanted(key)));
        results.push(arguments);
    }
    results
}

/// Returns the arguments of the requested rows of one trace. `file` is `None` if the file no longer
/// has the trace's format.
fn arguments_in_whole_file(
    file: Option<&whole_file::Reread>,
    events: &TraceRows<'_>,
) -> Result<Vec<Map<String, Value>>, Error> {
    let path = &events.trace.origin.path;
    let no_text = |reason: String| Error::NoText { path: path.clone(), reason };
    let Some(whole_file::Reread { reader, bytes }) = file else {
        return Err(no_text(CHANGED.to_owned()));
    };
    let order: Vec<u64> =
        events.rows.iter().map(|row| events.trace.slices.offset[*row as usize]).collect();
    // The reader visits the file once and needs the offsets in ascending order without duplicates.
    let mut places = order.clone();
    places.sort_unstable();
    places.dedup();
    let argument_maps = (reader.arguments)(bytes, &places).map_err(no_text)?;
    let at_place = |place: &u64| {
        let at = places.binary_search(place).ok();
        at.map_or_else(Map::new, |at| argument_maps[at].clone())
    };
    Ok(order.iter().map(at_place).collect())
}

/// The requested texts of one trace.
struct WantedTexts<'a> {
    origin: &'a TraceOrigin,
    /// Start and upper limit of the end of each event's text, in the order of the rows.
    spans: Vec<(u64, u64)>,
}

impl<'a> WantedTexts<'a> {
    fn new(events: &TraceRows<'a>) -> Result<Self, Error> {
        let path = &events.trace.origin.path;
        let no_text =
            |reason: &str| Err(Error::NoText { path: path.clone(), reason: reason.to_owned() });
        if path == Path::new("-") {
            return no_text("standard input can be read only once; save it to a file");
        }
        if path.as_os_str().is_empty() {
            return no_text("the trace was never in a file");
        }
        if events.trace.origin.encoding == Encoding::Whole {
            return no_text("the file holds no JSON text");
        }
        let spans: Vec<_> = events.rows.iter().map(|row| span(events.trace, *row)).collect();
        if spans.iter().any(|(start, _)| *start == u64::MAX) {
            return no_text("the events never were in a file");
        }
        Ok(Self { origin: &events.trace.origin, spans })
    }

    /// Arranges the texts of sorted spans in the order of the rows.
    fn arranged(&self, spans: &[(u64, u64)], texts: &[Vec<u8>]) -> Result<Vec<String>, Error> {
        let text_of = |span: &(u64, u64)| {
            let at = spans.binary_search(span).unwrap_or(usize::MAX);
            // A text that does not start with a brace shows that the file has changed since it was
            // read.
            let text = texts.get(at).filter(|text| text.starts_with(b"{"));
            let path = &self.origin.path;
            let changed = || Error::NoText { path: path.clone(), reason: CHANGED.to_owned() };
            Ok(String::from_utf8_lossy(text.ok_or_else(changed)?).into_owned())
        };
        self.spans.iter().map(text_of).collect()
    }
}

/// Returns the spans of all traces in ascending order without duplicates.
fn sorted(all: &[&WantedTexts<'_>]) -> Vec<(u64, u64)> {
    let mut spans: Vec<_> = all.iter().flat_map(|wanted| &wanted.spans).copied().collect();
    spans.sort_unstable();
    spans.dedup();
    spans
}

/// Returns the texts of each trace. Every compressed file is read only once.
fn read_texts(all: &[TraceRows<'_>]) -> Vec<Result<Vec<String>, Error>> {
    let (mut wanted, mut results) = (Vec::new(), Vec::new());
    for (at, events) in all.iter().enumerate() {
        match WantedTexts::new(events) {
            Ok(texts) => wanted.push((at, texts)),
            Err(error) => results.push((at, Err(error))),
        }
    }
    // Traces of the same file and of the same member must be adjacent to share one pass.
    wanted.sort_by_key(|(_, texts)| (&texts.origin.path, &texts.origin.member));
    for file in wanted.chunk_by(|(_, a), (_, b)| a.origin.path == b.origin.path) {
        let texts: Vec<&WantedTexts<'_>> = file.iter().map(|(_, texts)| texts).collect();
        results.extend(file.iter().map(|(at, _)| *at).zip(read_file_texts(&texts)));
    }
    // The results are returned in the order of the request.
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns the texts of traces in one file. Traces of the same member must be adjacent.
fn read_file_texts(all: &[&WantedTexts<'_>]) -> Vec<Result<Vec<String>, Error>> {
    let path = &all[0].origin.path;
    match is_plain(path) {
        Ok(true) => {
            let read = |wanted: &&WantedTexts<'_>| {
                let spans = sorted(&[*wanted]);
                wanted.arranged(&spans, &from_file(path, &spans).map_err(Error::read(path))?)
            };
            all.iter().map(read).collect()
        }
        Ok(false) => match from_stream(path, all) {
            Ok(texts) => texts,
            Err(error) => repeat_error(path, &error, all.len()),
        },
        Err(error) => repeat_error(path, &error, all.len()),
    }
}

/// Repeats an error for each trace of a file that cannot be read.
fn repeat_error(path: &Path, error: &io::Error, count: usize) -> Vec<Result<Vec<String>, Error>> {
    // `io::Error` cannot be cloned, so each trace gets a new error with the same text.
    let again = || io::Error::new(error.kind(), error.to_string());
    (0..count).map(|_| Err(Error::read(path)(again()))).collect()
}

/// Returns the start of an event's text and an upper limit of its end. The upper limit is the start
/// of the next event.
fn span(trace: &Trace, row: u32) -> (u64, u64) {
    let offsets = &trace.slices.offset;
    let start = offsets[row as usize];
    // The rows of a merged or sorted trace may not be in file order. If the next row starts earlier
    // in the file, only `LONGEST` limits the text.
    let next = offsets.get(row as usize + 1).copied().filter(|next| *next > start);
    (start, next.unwrap_or(u64::MAX).min(start.saturating_add(LONGEST)))
}

fn is_plain(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    pump::fill(&mut File::open(path)?, &mut head, file_format::HEAD_BYTES)?;
    Ok(file_format::detect_format(&head) == FileFormat::Plain)
}

fn from_file(path: &Path, spans: &[(u64, u64)]) -> io::Result<Vec<Vec<u8>>> {
    let mut file = File::open(path)?;
    let mut texts = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        file.seek(SeekFrom::Start(*start))?;
        let mut input = (&mut file).take(end - start);
        let (mut text, mut part, mut size) = (Vec::new(), Vec::new(), FIRST_READ);
        let mut scan = ObjectScan::default();
        loop {
            pump::fill(&mut input, &mut part, size)?;
            let ended = scan.feed(&part);
            text.extend_from_slice(&part[..ended.unwrap_or(part.len())]);
            if ended.is_some() || part.len() < size {
                break;
            }
            // Most events are short, so the first read is small. Doubling the size keeps the cost
            // of a long event linear.
            size *= 2;
        }
        texts.push(trimmed(text));
    }
    Ok(texts)
}

/// Reads the texts of traces from one compressed file or archive in one pass.
fn from_stream(
    path: &Path,
    all: &[&WantedTexts<'_>],
) -> io::Result<Vec<Result<Vec<String>, Error>>> {
    let never = AtomicBool::new(false);
    let reader =
        StreamReader { wanted: find::may_be_timeline, cancelled: &never, progress: &|| {} };
    let mut stream = TextStream::open(path, PumpShared::default(), reader)?;
    let mut read = Vec::new();
    let members = all.chunk_by(|a, b| a.origin.member == b.origin.member);
    // Reading stops after the last wanted member instead of at the end of the archive.
    let mut left = members.clone().count();
    while left > 0 {
        match stream.part() {
            StreamPart::Text(member) => {
                let Some(wanted) = members.clone().find(|all| all[0].origin.member == member)
                else {
                    continue;
                };
                let spans = sorted(wanted);
                let texts = from_blocks(&mut stream, &spans)?;
                read.push((&wanted[0].origin.member, spans, texts));
                left -= 1;
            }
            StreamPart::Done => break,
            StreamPart::Skipped(..) | StreamPart::Failed(_) => {}
        }
    }
    let arrange = |wanted: &&WantedTexts<'_>| {
        let member = read.iter().find(|(member, ..)| **member == wanted.origin.member);
        member.map_or_else(
            || wanted.arranged(&[], &[]),
            |(_, spans, texts)| wanted.arranged(spans, texts),
        )
    };
    Ok(all.iter().map(arrange).collect())
}

/// Reads the texts of spans from blocks. The spans must ascend and must not overlap.
fn from_blocks(blocks: &mut dyn Blocks, spans: &[(u64, u64)]) -> io::Result<Vec<Vec<u8>>> {
    let (mut texts, mut block, mut begin) = (Vec::new(), Vec::new(), 0);
    let (mut text, mut scan) = (Vec::new(), ObjectScan::default());
    while texts.len() < spans.len() && blocks.next(&mut block)? {
        let end = begin + block.len() as u64;
        while let Some((first, last)) = spans.get(texts.len()).filter(|(first, _)| *first < end) {
            // An event may continue over several blocks, so the part already copied is skipped.
            let from = (first + text.len() as u64 - begin) as usize;
            let part = &block[from..(last.min(&end) - begin) as usize];
            let ended = scan.feed(part);
            text.extend_from_slice(&part[..ended.unwrap_or(part.len())]);
            if ended.is_none() && *last > end {
                break;
            }
            texts.push(trimmed(std::mem::take(&mut text)));
            scan = ObjectScan::default();
        }
        begin = end;
    }
    // The last event of a truncated file has no end, but its beginning is returned.
    if texts.len() < spans.len() && !text.is_empty() {
        texts.push(trimmed(text));
    }
    Ok(texts)
}

/// Removes the blanks and commas that follow an event.
fn trimmed(mut text: Vec<u8>) -> Vec<u8> {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
    while text.last().is_some_and(is_between) {
        text.pop();
    }
    text
}

/// Finds the end of a JSON object in text that arrives in parts.
#[derive(Default)]
struct ObjectScan {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl ObjectScan {
    /// Returns the position after the object's closing brace, or `None` if `part` does not contain
    /// it.
    fn feed(&mut self, part: &[u8]) -> Option<usize> {
        for (at, byte) in part.iter().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Makes the text valid JSON: control characters in strings are escaped, and non-finite numbers are
/// replaced by null.
fn repaired(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut in_text, mut escaped) = (false, false);
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            _ if in_text && escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ if in_text && letter < ' ' => {
                result.push_str(&format!("\\u{:04x}", letter as u32));
                continue;
            }
            _ => {}
        }
        let is_word = |c: char| c.is_ascii_alphabetic();
        if in_text || !(is_word(letter) || letter == '-') {
            result.push(letter);
            continue;
        }
        let mut word = String::from(letter);
        while let Some(next) = rest.next_if(|next| is_word(*next)) {
            word.push(next);
        }
        let is_none = ["nan", "inf", "infinity"]
            .contains(&word.trim_start_matches('-').to_ascii_lowercase().as_str());
        result.push_str(if is_none { "null" } else { &word });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::{ObjectScan, repaired};

    #[test]
    fn object_ends_at_its_closing_brace() {
        let text = br#"{"a": "}\"]", "b": [{}, {"c": 1}]}, {"#;
        assert_eq!(ObjectScan::default().feed(text), Some(34));
        for cut in 0..34 {
            let mut scan = ObjectScan::default();
            assert_eq!(scan.feed(&text[..cut]), None);
            assert_eq!(scan.feed(&text[cut..]), Some(34 - cut));
        }
    }

    #[test]
    fn non_finite_numbers_become_null() {
        let text = "{\"a NaN\": NaN, \"b\": [-Infinity, inf, -1e5, true, null], \"c\": \"x\ny\"}";
        let expected = r#"{"a NaN": null, "b": [null, null, -1e5, true, null], "c": "x\u000ay"}"#;
        assert_eq!(repaired(text), expected);
    }
}
