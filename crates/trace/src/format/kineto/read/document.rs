//! Tracks the position in the whole document (header, events, rest of the header), and decides what
//! a premature end of the text means.

use std::collections::BTreeMap;

use serde_json::Value;

use super::events::{self, Find, ListState, Scanner, TextStretch};
use super::header;
use super::member::{self, Next};
use super::merge::Holds;
use super::part::TextPart;
use super::row::EventSink;
use super::scan::{self, Stop};
use super::text;
use crate::store::{CutRecording, Ending, Loss, TraceHeader};

/// Largest number of times that the rest of a truncated text is searched for events inside its
/// unfinished event.
const ATTEMPTS: usize = 16;
const EVENTS: &[u8] = b"\"traceEvents\"";
/// The key `ph`, which every event has.
const PHASE: &[u8] = b"\"ph\"";
/// Largest number of bytes between the key `traceEvents` and the bracket that opens its list.
const NEAR: usize = 16;

/// The error for a text that is not a Kineto trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKineto {
    /// Description of the actual content of the text.
    pub reason: String,
}

/// The state of reading a document from its first byte to its last.
#[derive(Debug)]
pub struct Document {
    mode: Mode,
    around: Around,
    /// Whether a list of events was found.
    listed: bool,
    entries: BTreeMap<String, Value>,
    refused: Option<String>,
    cut: Option<CutRecording>,
    /// Text that follows the end of the document.
    behind: TextBehind,
}

/// Text that follows the end of the document and is usually a second document.
#[derive(Debug, Default)]
struct TextBehind {
    /// Offset of the first byte that is neither blank nor zero, and offset after the last such
    /// byte.
    span: Option<(u64, u64)>,
    /// Number of `"ph"` keys, which is the number of events.
    events: u64,
}

impl TextBehind {
    /// Scans more text, and returns the position at which to continue. A key that starts in the
    /// last bytes is left for the next call, unless `is_last` states that the text ends.
    fn advance(&mut self, stretch: TextStretch<'_>, at: usize, is_last: bool) -> usize {
        let text = &stretch.text[at..];
        let kept = if is_last { 0 } else { text.len().min(PHASE.len() - 1) };
        let scanned = &text[..text.len() - kept];
        let is_text = |byte: &u8| *byte != 0 && !scan::is_blank(*byte);
        if let Some(first) = scanned.iter().position(is_text) {
            let last = scanned.iter().rposition(is_text).unwrap_or(first);
            let place = |at_known: usize| stretch.offset + (at + at_known) as u64;
            let start = self.span.map_or(place(first), |(start, _)| start);
            self.span = Some((start, place(last + 1)));
        }
        self.events += memchr::memmem::find_iter(text, PHASE)
            .filter(|start| *start < scanned.len())
            .count() as u64;
        at + scanned.len()
    }
}

/// The position of a document reader relative to the list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The reader is before the first bracket.
    Start,
    /// The reader is inside the object around the list of events, before or after the list.
    Header,
    /// The reader is after a broken place in the header and searches for the list of events.
    HeaderLost,
    /// The reader is inside the list of events.
    Events(ListState),
    Done,
}

/// Tells which bracket encloses the list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Around {
    Object,
    Nothing,
}

impl Document {
    /// Creates a reader that is before the first byte.
    pub fn new() -> Self {
        Self {
            mode: Mode::Start,
            around: Around::Object,
            listed: false,
            entries: BTreeMap::new(),
            refused: None,
            cut: None,
            behind: TextBehind::default(),
        }
    }

    /// Whether the next byte is between two events.
    pub fn is_between_events(&self) -> bool {
        self.mode == Mode::Events(ListState::Between)
    }

    /// Notes that another reader has processed the events up to this state.
    pub fn move_to(&mut self, state: ListState) {
        debug_assert!(self.is_between_events(), "expected to be between two events");
        self.mode = self.behind(state);
    }

    fn behind(&self, state: ListState) -> Mode {
        match (state, self.around) {
            (ListState::Ended, Around::Object) => Mode::Header,
            (ListState::Ended, Around::Nothing) => Mode::Done,
            (state, _) => Mode::Events(state),
        }
    }

    /// Reads more text. Returns the position at which reading must continue once more text is
    /// available.
    pub fn advance(
        &mut self,
        stretch: TextStretch<'_>,
        scanner: &mut Scanner,
        sink: &mut EventSink<'_>,
    ) -> usize {
        let text = stretch.text;
        let mut at = 0;
        loop {
            let answer = match self.mode {
                Mode::Start => self.start(text),
                Mode::Header => self.member(stretch, at, sink.part),
                Mode::HeaderLost => self.seek_events(text, at),
                Mode::Events(state) => {
                    let (end, state) = events::read(stretch, at, state, scanner, sink);
                    self.mode = self.behind(state);
                    // Reading continues after the list of events only if the list has ended within
                    // this text.
                    if state != ListState::Ended {
                        return end;
                    }
                    Ok(end)
                }
                Mode::Done if self.refused.is_some() => return text.len(),
                Mode::Done => return self.behind.advance(stretch, at, false),
            };
            match answer {
                Ok(end) => at = end,
                Err(resume) => return resume,
            }
        }
    }

    /// Reads the first bracket. An `Err` holds the position at which to continue with more text.
    fn start(&mut self, text: &[u8]) -> Result<usize, usize> {
        if text.len() < 3 && b"\xef\xbb\xbf".starts_with(text) {
            return Err(0);
        }
        let mark = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let at = scan::skip_blank(text, mark);
        match text.get(at) {
            None => return Err(0),
            Some(b'{') => self.mode = Mode::Header,
            Some(b'[') => {
                self.around = Around::Nothing;
                self.listed = true;
                self.mode = Mode::Events(ListState::Between);
            }
            Some(_) => {
                let first = String::from_utf8_lossy(&text[at..text.len().min(at + 16)]);
                self.refused = Some(format!("got {first:?}"));
                self.mode = Mode::Done;
            }
        }
        Ok(at + 1)
    }

    fn member(
        &mut self,
        stretch: TextStretch<'_>,
        at: usize,
        part: &mut TextPart,
    ) -> Result<usize, usize> {
        let text = stretch.text;
        let broken = |part: &mut TextPart, place: usize| {
            let place = stretch.offset + place as u64;
            let what = || format!("byte {place}: expected a key and a value, got neither");
            part.losses.count(Loss::BrokenHeader, what);
        };
        let value = match member::find(text, at) {
            Err(Stop::Short) => return Err(at),
            Err(Stop::Broken(place)) => {
                broken(part, place);
                self.mode = self.astray();
                return Ok(at);
            }
            Ok(Next::End(end)) => {
                self.mode = Mode::Done;
                return Ok(end);
            }
            Ok(Next::Member(key, value)) => {
                let key = text::decode(key.slice(text)).text;
                if key == "traceEvents" && text[value] == b'[' {
                    self.listed = true;
                    self.mode = Mode::Events(ListState::Between);
                    return Ok(value + 1);
                }
                (key, value)
            }
        };
        let (key, value) = value;
        match scan::skip_value(text, value) {
            Err(Stop::Short) => Err(at),
            Err(Stop::Broken(place)) => {
                broken(part, place);
                self.mode = self.astray();
                Ok(value)
            }
            Ok(end) => {
                let value = header::value(&text[value..end], stretch.offset + value as u64, part);
                self.entries.insert(key, value);
                Ok(end)
            }
        }
    }

    /// Returns the state after a broken place in the header. If the place is after the events, the
    /// end of their list may have been misread, so further events are searched for.
    fn astray(&self) -> Mode {
        if self.listed { Mode::Events(ListState::Lost) } else { Mode::HeaderLost }
    }

    /// Finds the opening bracket of the list of events after a broken header. The text between the
    /// key and the bracket may be broken too. The mode never becomes [`Mode::Header`] again,
    /// because reading the header may have failed at this very key.
    fn seek_events(&mut self, text: &[u8], at: usize) -> Result<usize, usize> {
        let Some(found) = memchr::memmem::find(&text[at..], EVENTS) else {
            return Err(text.len().saturating_sub(EVENTS.len()).max(at));
        };
        let behind = at + found + EVENTS.len();
        let Some(near) = text.get(behind..behind + NEAR) else { return Err(at + found) };
        match memchr::memchr(b'[', near) {
            Some(bracket) => {
                self.listed = true;
                self.mode = Mode::Events(ListState::Between);
                Ok(behind + bracket + 1)
            }
            None => Ok(behind),
        }
    }

    /// Processes the rest of the text at its end. `failure` is the reason if the end was premature.
    pub fn finish(
        &mut self,
        mut rest: TextStretch<'_>,
        failure: Option<&str>,
        scanner: &mut Scanner,
        sink: &mut EventSink<'_>,
    ) {
        for _ in 0..ATTEMPTS {
            let Some(next) = self.salvage(rest, scanner, sink) else { break };
            rest = next;
        }
        if self.mode == Mode::Done {
            self.behind.advance(rest, 0, true);
            rest = behind(rest, rest.text.len());
        }
        self.count_text_behind(sink);
        let complete = match self.mode {
            Mode::Done => true,
            // Chrome allows a bare list to omit its closing bracket.
            Mode::Events(ListState::Between) => {
                self.around == Around::Nothing && rest.text.is_empty()
            }
            Mode::Events(ListState::Lost) => ends_all(rest.text),
            _ => false,
        };
        if (!complete || failure.is_some()) && self.listed {
            let lost = rest.text.len();
            let why = failure.map(|why| format!(" ({why})")).unwrap_or_default();
            sink.lose(Loss::Truncated, rest.offset, || {
                format!(
                    "expected the end of the trace, got the end of the text{why}; {lost} bytes lost"
                )
            });
        }
        self.cut =
            self.ending(rest.text, failure).filter(|_| self.listed).map(|ending| CutRecording {
                ending,
                byte: rest.offset,
                why: failure.unwrap_or("the text ends there").to_owned(),
                covered: None,
                span: None,
            });
        if self.listed || self.refused.is_some() {
            return;
        }
        let why = failure.map(|why| format!(": {why}")).unwrap_or_default();
        let keys = || self.entries.keys().take(8).cloned().collect::<Vec<_>>().join(", ");
        self.refused = Some(match self.mode {
            Mode::Start => format!("got an empty text{why}"),
            Mode::Done => match self.entries.get("traceEvents") {
                Some(value) => {
                    format!("got traceEvents that are {}, not an array of events", described(value))
                }
                None => format!("got an object without traceEvents; its keys: {}", keys()),
            },
            _ => format!("got a text that ends before traceEvents; its keys: {}{why}", keys()),
        });
    }

    fn count_text_behind(&mut self, sink: &mut EventSink<'_>) {
        let TextBehind { span, events } = self.behind;
        // Without a list of events the whole text is rejected, so text after it is not counted.
        let Some((start, end)) = span.filter(|_| self.listed) else { return };
        let bytes = end - start;
        let losses = &mut sink.part.losses;
        let loss = if events == 0 { Loss::TextBehindTheEnd } else { Loss::BehindTheEnd };
        losses.count_many(loss, events.max(1), || {
            format!(
                "byte {start}: expected nothing after the end of the trace, \
                 got {events} events in {bytes} bytes"
            )
        });
    }

    /// Classifies the end of the events. Returns `None` if both list and text ended regularly.
    fn ending(&self, rest: &[u8], failure: Option<&str>) -> Option<Ending> {
        match self.mode {
            Mode::Done => failure.map(|_| Ending::BehindEvents),
            Mode::Header => Some(Ending::BehindEvents),
            Mode::Events(ListState::Lost) if ends_all(rest) => None,
            // Chrome allows a bare list to omit its closing bracket.
            Mode::Events(ListState::Between)
                if self.around == Around::Nothing && rest.is_empty() && failure.is_none() =>
            {
                Some(Ending::Unclosed)
            }
            _ => Some(Ending::WithinEvents),
        }
    }

    /// Returns how the recording was truncated, or `None` if it is complete.
    pub fn take_cut(&mut self) -> Option<CutRecording> {
        self.cut.take()
    }

    /// Recovers the events that follow an event without an end, as there is one where bytes of the
    /// file are missing. Returns `None` if no event follows.
    fn salvage<'a>(
        &mut self,
        rest: TextStretch<'a>,
        scanner: &mut Scanner,
        sink: &mut EventSink<'_>,
    ) -> Option<TextStretch<'a>> {
        let Mode::Events(_) = self.mode else { return None };
        let Find::Event(start) = events::find(rest.text, 1) else { return None };
        let events_before = sink.part.event_count();
        let later = behind(rest, start);
        let (mut end, state) = events::read(later, 0, ListState::Lost, scanner, sink);
        if sink.part.event_count() == events_before {
            return None;
        }
        sink.lose(Loss::BrokenEvent, rest.offset, || "expected an event, got only a part".into());
        sink.part.losses.skip_bytes(start as u64);
        self.mode = self.behind(state);
        if state == ListState::Ended {
            end += self.advance(behind(later, end), scanner, sink);
        }
        Some(behind(later, end))
    }

    /// Returns the header, or the reason why the text is not a trace.
    pub fn into_header(self, part: &mut TextPart, holds: Holds) -> Result<TraceHeader, NotKineto> {
        if let Some(reason) = self.refused {
            return Err(NotKineto { reason });
        }
        if self.around == Around::Nothing && holds == Holds::Losses {
            return Err(NotKineto { reason: "got an array without events".to_owned() });
        }
        Ok(header::from_entries(self.entries, &mut part.losses))
    }
}

/// Names the type of a JSON value for messages.
fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(members) => {
            let keys: Vec<&str> = members.keys().take(8).map(String::as_str).collect();
            format!("an object with the keys {}", keys.join(", "))
        }
    }
}

/// Whether only the closing brackets of the last event, the list and its object remain.
fn ends_all(text: &[u8]) -> bool {
    let closing: Vec<u8> = text.iter().copied().filter(|byte| !scan::is_blank(*byte)).collect();
    closing == b"}]}"
}

fn behind(stretch: TextStretch<'_>, at: usize) -> TextStretch<'_> {
    TextStretch { text: &stretch.text[at..], offset: stretch.offset + at as u64 }
}
