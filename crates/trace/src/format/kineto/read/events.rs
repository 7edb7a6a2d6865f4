//! Reads the events of a list one by one, and skips broken events.

use super::event::KeptEvent;
use super::key;
use super::layout::ValueLayout;
use super::lenient;
use super::parse::{self, ParseRule};
use super::row::{self, EventSink, EventSource};
use super::scan::{self, Scanned, Stop};
use crate::store::Loss;

/// The position of the reader relative to the list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListState {
    Between,
    /// The reader is after a broken place and searches for the next event.
    Lost,
    /// The reader is after the list's closing bracket.
    Ended,
}

/// Caches of the event parser, which affect only its speed.
#[derive(Debug)]
pub struct Scanner {
    layout: ValueLayout,
    event: KeptEvent,
}

impl Scanner {
    /// Creates empty caches, as before the first event.
    pub fn new() -> Self {
        Self { layout: ValueLayout::new(), event: KeptEvent::new() }
    }
}

/// A piece of the file's text with its offset.
#[derive(Clone, Copy)]
pub struct TextStretch<'a> {
    pub text: &'a [u8],
    /// Offset of the text in the uncompressed file.
    pub offset: u64,
}

/// Reads events until the text or the list ends. Returns the position at which reading must
/// continue once more text is available, and the state there.
pub fn read(
    stretch: TextStretch<'_>,
    mut at: usize,
    mut state: ListState,
    scanner: &mut Scanner,
    sink: &mut EventSink<'_>,
) -> (usize, ListState) {
    let text = stretch.text;
    loop {
        if state == ListState::Lost {
            let border = find(text, at);
            let (Find::Event(end) | Find::End(end) | Find::Nothing(end)) = border;
            sink.part.losses.skip_bytes((end - at) as u64);
            match border {
                Find::Event(start) => at = start,
                Find::End(end) => return (end, ListState::Ended),
                Find::Nothing(resume) => return (resume, ListState::Lost),
            }
        } else {
            at = skip_between(text, at);
            match text.get(at) {
                None => return (at, state),
                Some(b'{') => {}
                Some(b']') => return (at + 1, ListState::Ended),
                Some(_) => {
                    lose_event(sink, stretch, at, at);
                    state = ListState::Lost;
                    continue;
                }
            }
        }
        match one(stretch, at, scanner) {
            Ok(end) => {
                let source =
                    EventSource { text, event: &scanner.event, offset: stretch.offset + at as u64 };
                // An object inside a broken event looks like an event, but it has no phase.
                if state == ListState::Lost && source.event.phase.is_none() {
                    sink.part.losses.skip_bytes(1);
                    at += 1;
                    continue;
                }
                row::add(sink, source);
                (at, state) = (end, ListState::Between);
            }
            Err(Stop::Short) => return (at, state),
            Err(Stop::Broken(place)) => {
                lose_event(sink, stretch, at, place);
                let next = place.max(at + 1);
                sink.part.losses.skip_bytes((next - at) as u64);
                at = next;
                state = ListState::Lost;
            }
        }
    }
}

#[inline(always)]
fn skip_between(text: &[u8], mut at: usize) -> usize {
    while let Some(b',' | b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

#[inline(always)]
fn one(stretch: TextStretch<'_>, at: usize, scanner: &mut Scanner) -> Scanned<usize> {
    let Scanner { layout, event } = scanner;
    // Lenient parsing is slower and may guess, so it is tried only after strict parsing failed.
    match parse::event(stretch.text, at + 1, layout, event, ParseRule::Strict) {
        Err(Stop::Broken(strict)) => {
            match parse::event(stretch.text, at + 1, layout, event, ParseRule::Lenient) {
                Err(Stop::Broken(lenient)) => Err(Stop::Broken(strict.min(lenient))),
                Ok(end) => {
                    event.repaired = event.repaired.max(1);
                    Ok(end)
                }
                short => short,
            }
        }
        other => other,
    }
}

fn lose_event(sink: &mut EventSink<'_>, stretch: TextStretch<'_>, at: usize, place: usize) {
    // The message shows only the text that was examined, because the amount of text after it
    // depends on block sizes.
    let seen = &stretch.text[at..=place];
    sink.lose(Loss::BrokenEvent, stretch.offset + at as u64, || {
        let last = String::from_utf8_lossy(&seen[seen.len().saturating_sub(40)..]);
        format!("expected an event, got invalid JSON after {last:?}")
    });
}

/// The result of the search for events after a broken place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// Position of the opening bracket of what may be an event.
    Event(usize),
    /// Position after the list's closing bracket.
    End(usize),
    /// Position at which to continue, because the text has neither an event nor the list's end.
    Nothing(usize),
}

/// Searches for the next event or the end of the list. An event is an object whose first key
/// belongs to events.
///
/// The end of the list is a closing bracket after an object, followed by a key of the header or by
/// the end of the enclosing object. The end of the enclosing object can be recognized only at the
/// end of the text.
pub fn find(text: &[u8], mut at: usize) -> Find {
    loop {
        let found = text.get(at..).and_then(|rest| memchr::memchr2(b'{', b'}', rest));
        let Some(found) = found else { return Find::Nothing(text.len()) };
        at += found;
        let answer = if text[at] == b'{' { starts_event(text, at) } else { ends_list(text, at) };
        match answer {
            Ok(Some(answer)) => return answer,
            Ok(None) | Err(Stop::Broken(_)) => at += 1,
            Err(Stop::Short) => return Find::Nothing(at),
        }
    }
}

fn starts_event(text: &[u8], at: usize) -> Scanned<Option<Find>> {
    let (first, quote) = scan::after_blank(text, at + 1)?;
    let is_event = first == b'"' && lenient::key_at(text, quote)?.is_some_and(key::is_event_key);
    Ok(is_event.then_some(Find::Event(at)))
}

fn ends_list(text: &[u8], at: usize) -> Scanned<Option<Find>> {
    let (bracket, at) = scan::after_blank(text, at + 1)?;
    if bracket != b']' {
        return Ok(None);
    }
    let ends = match scan::after_blank(text, at + 1)? {
        (b'}', end) => scan::after_blank(text, end + 1).map(|_| false)?,
        (b',', comma) => match scan::after_blank(text, comma + 1)? {
            (b'"', quote) => lenient::key_at(text, quote)?.is_some_and(key::is_header_key),
            _ => false,
        },
        _ => false,
    };
    Ok(ends.then_some(Find::End(at + 1)))
}
