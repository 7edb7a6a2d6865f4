//! The text of single events, read again from where the trace came from: what no column holds.
//!
//! Knows where an event's text ends, nothing of what it says.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value};

use super::blocks::Blocks;
use super::find;
use super::form::{self, Form};
use super::perfetto;
use super::pump::{self, Shared};
use super::stream::{Part, Reader, Stream};
use crate::Error;
use crate::format::perfetto::read;
use crate::store::Trace;

/// Longer events are cut here.
const LONGEST: u64 = 64 << 20;
/// Bytes read at first for an event of a plain file.
const FIRST_READ: usize = 4 << 10;

/// The JSON texts of events, in the order of `rows`, as they stand in the file.
///
/// # Cost
/// One read per row of a plain file; one pass over a compressed one.
/// # Errors
/// [`Error::NoText`] for standard input, for a trace that never was a file and for a file that has
/// changed; [`Error::Read`].
pub fn event_texts(trace: &Trace, rows: &[u32]) -> Result<Vec<String>, Error> {
    let wanted = Wanted::of(trace, rows)?;
    let path = &trace.origin.path;
    let texts = if is_plain(path).map_err(Error::read(path))? {
        from_file(path, &wanted.spans).map_err(Error::read(path))?
    } else {
        from_stream(path, &[(trace, &wanted)])?.pop().unwrap_or_default()
    };
    wanted.in_order(trace, &texts)
}

/// Where the texts of some events of a trace lie.
struct Wanted {
    /// As they were asked for.
    order: Vec<(u64, u64)>,
    /// Ascending, each once.
    spans: Vec<(u64, u64)>,
}

impl Wanted {
    fn of(trace: &Trace, rows: &[u32]) -> Result<Self, Error> {
        let path = &trace.origin.path;
        if path == Path::new("-") {
            let reason = "standard input can be read only once; save it to a file";
            return Err(no_text(trace, reason));
        }
        if path.as_os_str().is_empty() {
            return Err(no_text(trace, "the trace never was a file"));
        }
        let order: Vec<(u64, u64)> = rows.iter().map(|row| span(trace, *row)).collect();
        if order.iter().any(|(start, _)| *start == u64::MAX) {
            return Err(no_text(trace, "the events never were in a file"));
        }
        let mut spans = order.clone();
        spans.sort_unstable();
        spans.dedup();
        Ok(Self { order, spans })
    }

    /// The texts as they were asked for.
    fn in_order(&self, trace: &Trace, texts: &[Vec<u8>]) -> Result<Vec<String>, Error> {
        let text_of = |span: &(u64, u64)| {
            let at = self.spans.binary_search(span).unwrap_or_default();
            let text = texts.get(at).filter(|text| text.starts_with(b"{"));
            let text = text.ok_or_else(|| no_text(trace, "the file has changed since"))?;
            Ok(String::from_utf8_lossy(text).into_owned())
        };
        self.order.iter().map(text_of).collect()
    }
}

fn no_text(trace: &Trace, reason: &str) -> Error {
    Error::NoText { path: trace.origin.path.clone(), reason: reason.to_owned() }
}

/// The arguments of events, in the order of `rows`; empty for events without any.
///
/// Numbers that are none (`NaN`, `inf`) come as null.
///
/// # Errors
/// As [`event_texts`]; [`Error::NoText`] for an event that is no JSON object.
pub fn arguments(trace: &Trace, rows: &[u32]) -> Result<Vec<Map<String, Value>>, Error> {
    if let Some(found) = of_packets(trace, rows)? {
        return Ok(found);
    }
    parsed(trace, event_texts(trace, rows)?)
}

/// [`arguments`] of events of several traces. A compressed file that holds several of them, as an
/// archive of all ranks does, is read once.
pub fn arguments_of_job(
    wanted: &[(&Trace, &[u32])],
) -> Vec<Result<Vec<Map<String, Value>>, Error>> {
    let mut found: Vec<Option<Result<_, Error>>> = wanted.iter().map(|_| None).collect();
    for at in 0..wanted.len() {
        if found[at].is_some() {
            continue;
        }
        let path = &wanted[at].0.origin.path;
        let together: Vec<usize> =
            (at..wanted.len()).filter(|other| wanted[*other].0.origin.path == *path).collect();
        let is_member = |place: &usize| wanted[*place].0.origin.member.is_some();
        let is_shared = together.len() > 1 && together.iter().all(is_member);
        let texts = if is_shared { texts_together(wanted, &together).ok() } else { None };
        match texts {
            Some(texts) => {
                for (place, texts) in together.iter().zip(texts) {
                    found[*place] = Some(parsed(wanted[*place].0, texts));
                }
            }
            // One by one, each with an error of its own.
            None => found[at] = Some(arguments(wanted[at].0, wanted[at].1)),
        }
    }
    found.into_iter().map(|one| one.unwrap_or_else(|| Ok(Vec::new()))).collect()
}

/// The texts of events of traces that lie in one file.
fn texts_together(
    wanted: &[(&Trace, &[u32])],
    places: &[usize],
) -> Result<Vec<Vec<String>>, Error> {
    let traces: Vec<(&Trace, Wanted)> = places
        .iter()
        .map(|place| Ok((wanted[*place].0, Wanted::of(wanted[*place].0, wanted[*place].1)?)))
        .collect::<Result<_, Error>>()?;
    let parts: Vec<(&Trace, &Wanted)> =
        traces.iter().map(|(trace, wanted)| (*trace, wanted)).collect();
    let Some((first, _)) = parts.first() else { return Ok(Vec::new()) };
    let texts = from_stream(&first.origin.path, &parts)?;
    parts.iter().zip(texts).map(|((trace, wanted), texts)| wanted.in_order(trace, &texts)).collect()
}

fn parsed(trace: &Trace, texts: Vec<String>) -> Result<Vec<Map<String, Value>>, Error> {
    let parse = |text: String| {
        let parsed =
            serde_json::from_str(&text).or_else(|_| serde_json::from_str(&repaired(&text)));
        let event: Value =
            parsed.map_err(|error| no_text(trace, &format!("expected an event, got {error}")))?;
        match event {
            Value::Object(mut event) => match event.remove("args") {
                Some(Value::Object(arguments)) => Ok(arguments),
                _ => Ok(Map::new()),
            },
            _ => Ok(Map::new()),
        }
    };
    texts.into_iter().map(parse).collect()
}

/// The same of a trace that was read from a Perfetto file.
fn of_packets(trace: &Trace, rows: &[u32]) -> Result<Option<Vec<Map<String, Value>>>, Error> {
    let origin = &trace.origin;
    if rows.is_empty() || origin.path.as_os_str().is_empty() || origin.path == Path::new("-") {
        return Ok(None);
    }
    let Some(bytes) = perfetto::bytes_of(origin)? else { return Ok(None) };
    let order: Vec<u64> = rows.iter().map(|row| trace.slices.offset[*row as usize]).collect();
    let mut places = order.clone();
    places.sort_unstable();
    places.dedup();
    let no_text = |reason| Error::NoText { path: origin.path.clone(), reason };
    let found = read::arguments(&bytes, &places).map_err(no_text)?;
    let of = |place: &u64| {
        let at = places.binary_search(place).ok();
        at.map_or_else(Map::new, |at| found[at].clone())
    };
    Ok(Some(order.iter().map(of).collect()))
}

/// Where an event begins and what it cannot reach beyond: the next event's begin.
fn span(trace: &Trace, row: u32) -> (u64, u64) {
    let offsets = &trace.slices.offset;
    let start = offsets[row as usize];
    let next = offsets.get(row as usize + 1).copied().filter(|next| *next > start);
    (start, next.unwrap_or(u64::MAX).min(start.saturating_add(LONGEST)))
}

fn is_plain(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    pump::fill(&mut File::open(path)?, &mut head, form::HEAD)?;
    Ok(form::of(&head) == Form::Plain)
}

fn from_file(path: &Path, spans: &[(u64, u64)]) -> io::Result<Vec<Vec<u8>>> {
    let mut file = File::open(path)?;
    let mut texts = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        file.seek(SeekFrom::Start(*start))?;
        let mut input = (&mut file).take(end - start);
        let (mut text, mut part, mut size) = (Vec::new(), Vec::new(), FIRST_READ);
        let mut scan = Scan::default();
        loop {
            pump::fill(&mut input, &mut part, size)?;
            let ended = scan.feed(&part);
            text.extend_from_slice(&part[..ended.unwrap_or(part.len())]);
            if ended.is_some() || part.len() < size {
                break;
            }
            size *= 2;
        }
        texts.push(trimmed(text));
    }
    Ok(texts)
}

/// The texts of events of several traces that one file holds, by trace; none of one it lacks.
fn from_stream(path: &Path, wanted: &[(&Trace, &Wanted)]) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let never = AtomicBool::new(false);
    let reader = Reader { wanted: find::may_be_trace, cancelled: &never, progress: &|| {} };
    let mut stream = Stream::open(path, Shared::default(), reader).map_err(Error::read(path))?;
    let mut texts = vec![Vec::new(); wanted.len()];
    let mut left = wanted.len();
    while left > 0 {
        match stream.part() {
            Part::Text(member) => {
                let at = wanted.iter().position(|(trace, _)| trace.origin.member == member);
                let Some(at) = at else { continue };
                let spans = &wanted[at].1.spans;
                texts[at] = from_blocks(&mut stream, spans).map_err(Error::read(path))?;
                left -= 1;
            }
            Part::Done => break,
            Part::Skipped(..) | Part::Failed(_) => {}
        }
    }
    Ok(texts)
}

/// The texts of spans in ascending order, none of which overlap.
fn from_blocks(blocks: &mut dyn Blocks, spans: &[(u64, u64)]) -> io::Result<Vec<Vec<u8>>> {
    let (mut texts, mut block, mut begin) = (Vec::new(), Vec::new(), 0);
    let (mut text, mut scan) = (Vec::new(), Scan::default());
    while texts.len() < spans.len() && blocks.next(&mut block)? {
        let end = begin + block.len() as u64;
        while let Some((first, last)) = spans.get(texts.len()).filter(|(first, _)| *first < end) {
            let from = (first + text.len() as u64 - begin) as usize;
            let part = &block[from..(last.min(&end) - begin) as usize];
            let ended = scan.feed(part);
            text.extend_from_slice(&part[..ended.unwrap_or(part.len())]);
            if ended.is_none() && *last > end {
                break;
            }
            texts.push(trimmed(std::mem::take(&mut text)));
            scan = Scan::default();
        }
        begin = end;
    }
    if texts.len() < spans.len() && !text.is_empty() {
        texts.push(trimmed(text));
    }
    Ok(texts)
}

/// Without what stands between an event that does not end and the next one.
fn trimmed(mut text: Vec<u8>) -> Vec<u8> {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
    while text.last().is_some_and(is_between) {
        text.pop();
    }
    text
}

/// Looks for the end of an object, part by part.
#[derive(Default)]
struct Scan {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Scan {
    /// Where in `part` the object ends, behind its brace.
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

/// The text as JSON demands it: no control characters in texts, null for numbers that are none.
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
    use super::{Scan, repaired};

    #[test]
    fn an_object_ends_where_its_braces_do() {
        let text = br#"{"a": "}\"]", "b": [{}, {"c": 1}]}, {"#;
        assert_eq!(Scan::default().feed(text), Some(34));
        for cut in 0..34 {
            let mut scan = Scan::default();
            assert_eq!(scan.feed(&text[..cut]), None);
            assert_eq!(scan.feed(&text[cut..]), Some(34 - cut));
        }
    }

    #[test]
    fn numbers_that_are_none_become_null() {
        let text = "{\"a NaN\": NaN, \"b\": [-Infinity, inf, -1e5, true, null], \"c\": \"x\ny\"}";
        let expected = r#"{"a NaN": null, "b": [null, null, -1e5, true, null], "c": "x\u000ay"}"#;
        assert_eq!(repaired(text), expected);
    }
}
