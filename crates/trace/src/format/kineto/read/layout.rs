//! Remembers the texts between values in a tree, which predicts the keys of the next event.
//!
//! A profiler writes all events of one kind alike. The text between two values (such as `, "tid":
//! `, including blanks) has the same bytes each time. The tree remembers these texts in the order
//! in which they follow each other, so that a key costs one comparison instead of parsing and a
//! lookup. The tree affects only the speed, because a remembered text gives the same result as
//! parsing it again.
//!
//! Phase and category take few values, and the following keys depend on them. Therefore the start
//! of an event, up to its first other value, is remembered as one text, called an *opening*. Each
//! opening of an event has a tree of its own.

use super::event::{KeptEvent, TextRange};
use super::key::{self, KeyStep};
use super::lane;
use super::member::{self, Next};
use super::scan::{self, Scanned};

/// Largest length of a text that is remembered.
const LONGEST: usize = 64;
/// Largest number of remembered texts. Keys that are data, such as the series of counters, must not
/// fill the memory.
const MOST: usize = 4096;
/// Largest number of remembered texts that follow the same text.
const MOST_ALIKE: u32 = 24;

/// A node of the tree, which stands for the text before the value that was just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePlace(u32);

const NOWHERE: u32 = u32::MAX;
/// Node after the opening bracket of an event whose opening is not remembered.
const START: TreePlace = TreePlace(0);
/// Node after a text that is not remembered, among the keys of an event.
const BEHIND_ANY_OF_EVENT: TreePlace = TreePlace(1);
/// Node after a text that is not remembered, among the keys of arguments.
const BEHIND_ANY_OF_ARGUMENTS: TreePlace = TreePlace(2);

/// A node of the tree: a text between two values, and the texts that follow it.
#[derive(Clone, Debug)]
struct LayoutNode {
    text: [u8; LONGEST],
    length: u32,
    step: KeyStep,
    level: Level,
    children: u32,
    /// Index of the child that was found last, which is tried first.
    recent: u32,
    first_child: u32,
    sibling: u32,
}

/// A remembered start of events: the text up to the first value other than phase and category.
#[derive(Clone, Copy, Debug)]
struct Opening {
    /// The tree node that holds the text.
    place: TreePlace,
    /// Ranges of phase and category, relative to the start of the text.
    phase: Option<TextRange>,
    category: Option<TextRange>,
    /// Index of the opening that followed last time, which is tried first.
    next: u32,
}

/// The object to which the next keys belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Event,
    Arguments,
}

/// The texts between values that were read so far, as a tree.
#[derive(Clone, Debug)]
pub struct ValueLayout {
    nodes: Vec<LayoutNode>,
    openings: Vec<Opening>,
    last: u32,
}

impl ValueLayout {
    /// Creates a tree without any remembered texts.
    pub fn new() -> Self {
        let nameless = |level| LayoutNode::new(b"", KeyStep::Skip, level);
        let nodes = [Level::Event, Level::Event, Level::Arguments].map(nameless).to_vec();
        Self { nodes, openings: Vec::new(), last: 0 }
    }

    /// Reads the opening of an event after its bracket at `at`. Returns the node and the position
    /// of the first value after the opening. The phase and category of the opening are stored in
    /// `event`.
    #[inline(always)]
    pub fn open(
        &mut self,
        text: &[u8],
        at: usize,
        event: &mut KeptEvent,
    ) -> Scanned<(TreePlace, usize)> {
        // Kinds of events often follow each other in the same order, so the opening that followed
        // last time is tried first.
        let likely = self.openings.get(self.last as usize).map_or(0, |last| last.next);
        if let Some(opening) = self.openings.get(likely as usize)
            && let Some(end) = self.nodes[opening.place.0 as usize].predicts(text, at)
        {
            self.last = likely;
            opening.note(at, event);
            return Ok((opening.place, end));
        }
        self.open_otherwise(text, at, event)
    }

    #[inline(never)]
    fn open_otherwise(
        &mut self,
        text: &[u8],
        at: usize,
        event: &mut KeptEvent,
    ) -> Scanned<(TreePlace, usize)> {
        let predicts =
            |opening: &Opening| self.nodes[opening.place.0 as usize].predicts(text, at).is_some();
        let known = self.openings.iter().position(predicts);
        let Some(found) = known.or_else(|| self.learn(text, at)) else {
            return self.next(text, at, START);
        };
        if let Some(last) = self.openings.get_mut(self.last as usize) {
            last.next = found as u32;
        }
        self.last = found as u32;
        let opening = self.openings[found];
        opening.note(at, event);
        Ok((opening.place, at + self.nodes[opening.place.0 as usize].length as usize))
    }

    /// Remembers the opening of the event at `start`, if its phase and category are plain strings
    /// and it is short enough. Returns its index.
    fn learn(&mut self, text: &[u8], start: usize) -> Option<usize> {
        if self.nodes.len() >= MOST || self.openings.len() >= MOST_ALIKE as usize {
            return None;
        }
        let (mut phase, mut category) = (None, None);
        let mut at = start;
        let (step, end) = loop {
            let (step, value) = parse(text, at, Level::Event).ok()?;
            let constant = match step {
                KeyStep::Phase => &mut phase,
                KeyStep::Category => &mut category,
                _ => break (step, value),
            };
            let end = scan::plain_end(text, value + 1).filter(|_| text[value] == b'"')?;
            let (from, to) = (value + 1 - start, end - start);
            *constant = Some(TextRange { start: from, end: to, plain: true });
            at = end + 1;
        };
        if at == start || end - start > LONGEST || step == KeyStep::SkipOnce {
            return None;
        }
        let place = TreePlace(self.nodes.len() as u32);
        self.nodes.push(LayoutNode::new(&text[start..end], step, behind(step, Level::Event)));
        self.openings.push(Opening { place, phase, category, next: 0 });
        Some(self.openings.len() - 1)
    }

    /// Reads the text at `at`, which follows the value of node `place`. Returns the next node and
    /// the position of its value. [`ValueLayout::step`] returns the meaning of the node.
    #[inline(always)]
    pub fn next(
        &mut self,
        text: &[u8],
        at: usize,
        place: TreePlace,
    ) -> Scanned<(TreePlace, usize)> {
        let recent = self.nodes[place.0 as usize].recent;
        if let Some(node) = self.nodes.get(recent as usize)
            && let Some(end) = node.predicts(text, at)
        {
            return Ok((TreePlace(recent), end));
        }
        self.other(text, at, place)
    }

    /// Returns what a key means, by the node of the key tree that [`ValueLayout::next`] found.
    /// `next` and `step` are separate functions because returning a step and a place together
    /// stalls the processor at each key, which costs a fifth of the time.
    #[inline(always)]
    pub fn step(&self, place: TreePlace) -> KeyStep {
        self.nodes[place.0 as usize].step
    }

    #[inline(never)]
    fn other(&mut self, text: &[u8], at: usize, place: TreePlace) -> Scanned<(TreePlace, usize)> {
        let mut child = self.nodes[place.0 as usize].first_child;
        while let Some(node) = self.nodes.get(child as usize) {
            if let Some(end) = node.predicts(text, at) {
                self.nodes[place.0 as usize].recent = child;
                return Ok((TreePlace(child), end));
            }
            child = node.sibling;
        }
        let level = self.nodes[place.0 as usize].level;
        let (step, end) = parse(text, at, level)?;
        Ok((self.remember(place, step, &text[at..end]), end))
    }

    fn remember(&mut self, place: TreePlace, step: KeyStep, text: &[u8]) -> TreePlace {
        let level = behind(step, self.nodes[place.0 as usize].level);
        let full = self.nodes.len() >= MOST || self.nodes[place.0 as usize].children >= MOST_ALIKE;
        if text.len() > LONGEST || full || step == KeyStep::SkipOnce {
            let place = match level {
                Level::Event => BEHIND_ANY_OF_EVENT,
                Level::Arguments => BEHIND_ANY_OF_ARGUMENTS,
            };
            self.nodes[place.0 as usize].step = step;
            return place;
        }
        let child = self.nodes.len() as u32;
        let mut node = LayoutNode::new(text, step, level);
        let parent = &mut self.nodes[place.0 as usize];
        node.sibling = parent.first_child;
        (parent.first_child, parent.recent) = (child, child);
        parent.children += 1;
        self.nodes.push(node);
        TreePlace(child)
    }
}

impl Opening {
    /// Stores the phase and the category of an opening at `at` in the event.
    #[inline(always)]
    fn note(&self, at: usize, event: &mut KeptEvent) {
        let moved = |content: TextRange| TextRange {
            start: at + content.start,
            end: at + content.end,
            plain: content.plain,
        };
        event.phase = self.phase.map(moved);
        event.category = self.category.map_or_else(TextRange::default, moved);
    }
}

/// Returns the object to which the keys after the value of a step belong.
fn behind(step: KeyStep, level: Level) -> Level {
    match (step, level) {
        (KeyStep::Arguments, _) | (KeyStep::Keep(_) | KeyStep::Skip, Level::Arguments) => {
            Level::Arguments
        }
        _ => Level::Event,
    }
}

impl LayoutNode {
    fn new(text: &[u8], step: KeyStep, level: Level) -> Self {
        let mut padded = [0; LONGEST];
        padded[..text.len()].copy_from_slice(text);
        Self {
            text: padded,
            length: text.len() as u32,
            step,
            level,
            children: 0,
            recent: NOWHERE,
            first_child: NOWHERE,
            sibling: NOWHERE,
        }
    }

    /// Returns the position after the remembered text if the text at `at` equals it, else `None`.
    #[inline(always)]
    fn predicts(&self, text: &[u8], at: usize) -> Option<usize> {
        let (ours, more) = self.text.split_first_chunk::<32>()?;
        let (theirs, rest) = text.get(at..)?.split_first_chunk::<32>()?;
        if !lane::same_start(ours, theirs, self.length.min(32)) {
            return None;
        }
        let left = self.length.saturating_sub(32);
        if left > 0 {
            let (ours, theirs) = (more.first_chunk::<32>()?, rest.first_chunk::<32>()?);
            if !lane::same_start(ours, theirs, left) {
                return None;
            }
        }
        Some(at + self.length as usize)
    }
}

/// Parses blanks, commas, a key and its colon, or a closing bracket.
///
/// Missing and superfluous commas are accepted, because the meaning stays unambiguous.
fn parse(text: &[u8], at: usize, level: Level) -> Scanned<(KeyStep, usize)> {
    let (key, at) = match member::find(text, at)? {
        Next::End(end) => return Ok((KeyStep::End, end)),
        Next::Member(key, at) => (key.slice(text), at),
    };
    let decoded;
    let mut key = key;
    if key.contains(&b'\\') {
        decoded = super::text::decode(key).text;
        key = decoded.as_bytes();
    }
    match level {
        Level::Arguments => Ok((key::argument_step(key), at)),
        Level::Event => match key::event_step(key) {
            // The opening bracket is part of the remembered text, so that other values of this key
            // have a different text before them.
            KeyStep::Arguments if text[at] == b'{' => Ok((KeyStep::Arguments, at + 1)),
            KeyStep::Arguments => Ok((KeyStep::SkipOnce, at)),
            step => Ok((step, at)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_ALIKE, ValueLayout};
    use crate::format::kineto::read::event::KeptEvent;
    use crate::format::kineto::read::parse::{self, ParseRule};

    fn scanned(layout: &mut ValueLayout, text: &str) -> String {
        let mut event = KeptEvent::new();
        let end = parse::event(text.as_bytes(), 1, layout, &mut event, ParseRule::Strict);
        format!("{end:?} {event:?}")
    }

    #[test]
    fn an_event_means_the_same_whatever_came_before() {
        let mut events: Vec<String> = [
            r#"{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "args": {"stream": 7}}"#,
            r#"{"ph": "X", "cat": "kernel", "name": "b", "pid": 1, "args": {"stream": 8}}"#,
            r#"{"ph": "X", "cat": "ker\u006eel", "name": "escaped"}"#,
            r#"{"ph": "X", "cat": "kernel", "cat": "later", "ph": "i", "name": "twice"}"#,
            r#"{"ph": "X", "name": "between", "cat": "kernel"}"#,
            r#"{"cat": "kernel", "ph": "X", "name": "the other order"}"#,
            r#"{"ph": "", "cat": "", "name": "empty"}"#,
            r#"{"ph": 5, "cat": null, "name": "no texts"}"#,
            r#"{"ph": "M"}"#,
            r#"{"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "bp": "e"}"#,
            r#"{"ph": "X", "cat": "kernel", "args": {"device": 3}, "dur": 1}"#,
            r#"{"ph": "X", "cat": "kernel", "args": [3], "dur": 1}"#,
            r#"{"ph": "X",   "cat":   "kernel",   "name": "blanks"}"#,
            r#"{"name": "no opening", "ph": "X", "cat": "kernel"}"#,
            r#"{"ph": "X", "cat": "kernel" "name": "a comma too few"}"#,
            "{}",
        ]
        .map(str::to_owned)
        .to_vec();
        let long = "long".repeat(20);
        events.push(format!(r#"{{"ph": "X", "cat": "{long}", "name": "c"}}"#));
        // The test has more kinds of events than the layout remembers.
        let kinds = 0..2 * MOST_ALIKE;
        events.extend(kinds.map(|kind| format!(r#"{{"ph": "X", "cat": "k{kind}", "name": "d"}}"#)));
        // Vector instructions examine more bytes than an event may have, so blanks follow each
        // event.
        let events: Vec<String> =
            events.iter().map(|event| format!("{event}{}", " ".repeat(200))).collect();

        let mut layout = ValueLayout::new();
        for stride in [1, 3, 5, 1] {
            for at in 0..events.len() {
                let event = &events[at * stride % events.len()];
                let alone = scanned(&mut ValueLayout::new(), event);
                assert_eq!(scanned(&mut layout, event), alone, "{event}");
            }
        }
    }
}
