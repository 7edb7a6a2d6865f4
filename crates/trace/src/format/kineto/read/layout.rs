//! A tree of the texts seen between values, which predicts the next event.
//!
//! A profiler writes all events of one kind alike: the text between two values (such as `, "tid":
//! `, blanks included) is the same bytes each time. The tree remembers these texts in the order in
//! which they follow each other, so that a key costs one comparison instead of being parsed and
//! looked up. It changes only the speed: a remembered text gives the same result as parsing it
//! anew.
//!
//! Phase and category are the same words again and again, and say what follows. So an event's start
//! up to the first other value is remembered as one text, an *opening*, with a tree of its own.

use super::event::{KeptEvent, TextRange};
use super::key::{self, KeyStep};
use super::lane;
use super::member::{self, Next};
use super::scan::{self, Scanned};

/// Longer texts are parsed each time.
const LONGEST: usize = 64;
/// Texts remembered; keys made from data, such as counters' series, must not fill the memory.
const MOST: usize = 4096;
/// Texts remembered behind one other.
const MOST_ALIKE: u32 = 24;

/// A place in the tree: the text before the value just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePlace(u32);

const NOWHERE: u32 = u32::MAX;
/// Behind the opening bracket of an event that opens like no other.
const START: TreePlace = TreePlace(0);
/// Where the tree goes on behind a text that is not remembered.
const BEHIND_ANY_OF_EVENT: TreePlace = TreePlace(1);
const BEHIND_ANY_OF_ARGUMENTS: TreePlace = TreePlace(2);

#[derive(Clone, Debug)]
struct LayoutNode {
    text: [u8; LONGEST],
    length: u32,
    step: KeyStep,
    level: Level,
    children: u32,
    /// The child taken last: tried first.
    recent: u32,
    first_child: u32,
    sibling: u32,
}

/// How an event may start: the text up to the first value that is not its phase or category.
#[derive(Clone, Copy, Debug)]
struct Opening {
    /// The place in the tree that holds the text.
    place: TreePlace,
    /// Where phase and category stand, from the text's start.
    phase: Option<TextRange>,
    category: Option<TextRange>,
    /// The opening that followed this one last: tried first.
    next: u32,
}

/// Which keys are next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Those of an event.
    Event,
    /// Those of its arguments.
    Arguments,
}

/// The texts between values, as seen so far.
#[derive(Clone, Debug)]
pub struct ValueLayout {
    nodes: Vec<LayoutNode>,
    openings: Vec<Opening>,
    /// The opening of the last event.
    last: u32,
}

impl ValueLayout {
    /// Before the first event.
    pub fn new() -> Self {
        let nameless = |level| LayoutNode::new(b"", KeyStep::Skip, level);
        let nodes = [Level::Event, Level::Event, Level::Arguments].map(nameless).to_vec();
        Self { nodes, openings: Vec::new(), last: 0 }
    }

    /// What comes first behind an event's opening bracket at `at`, and where its value starts. What
    /// was passed of phase and category is noted in the event.
    #[inline(always)]
    pub fn open(
        &mut self,
        text: &[u8],
        at: usize,
        event: &mut KeptEvent,
    ) -> Scanned<(TreePlace, usize)> {
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

    /// Remembers how the event at `at` opens, if it is like other events.
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

    /// What comes next at `at`, behind the value that belongs to `place`, and where its value
    /// starts. [`ValueLayout::step`] says what it means.
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

    /// What the text before the place found last means. Apart from [`ValueLayout::next`], because a
    /// step and a place returned together cost a stall of the processor per key: a fifth of the
    /// time.
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
    /// Notes what an opening at `at` says; it says only what is not empty.
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

/// The level of the keys behind the value of a step.
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

    /// The place behind the remembered text, if that stands at `at`.
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

/// Reads blanks, commas, a key and its colon, or a closing bracket.
///
/// A comma may be missing or too many: nothing else can be meant.
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
        Level::Arguments => Ok((key::of_arguments(key), at)),
        Level::Event => match key::of_event(key) {
            // The opening bracket belongs to the text, so that other values of this key differ in
            // it.
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
        let end = parse::event(text.as_bytes(), 1, (layout, &mut event), ParseRule::Strict);
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
        // More kinds than are remembered.
        let kinds = 0..2 * MOST_ALIKE;
        events.extend(kinds.map(|kind| format!(r#"{{"ph": "X", "cat": "k{kind}", "name": "d"}}"#)));
        // Vectors look at more bytes than an event may have.
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
