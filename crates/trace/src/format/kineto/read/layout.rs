//! The texts between values, as seen so far: a tree along which events are predicted.
//!
//! A profiler writes the events of a kind alike: what stands between two values (`, "tid": ` with
//! all its blanks) is the same bytes each time. The tree remembers these texts in the order in
//! which they follow each other, so that a key costs one comparison instead of being parsed and
//! looked up. It changes only how fast an answer comes: a remembered text means what parsing it
//! anew means.

use super::key::{self, Step};
use super::lane;
use super::member::{self, Next};
use super::scan::Scan;

/// Longer texts are parsed each time.
const LONGEST: usize = 64;
/// Texts remembered; keys made from data, such as counters' series, must not fill the memory.
const MOST: usize = 4096;
/// Texts remembered behind one other.
const MOST_ALIKE: u32 = 24;

/// A place in the tree: the text before the value just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

const NOWHERE: u32 = u32::MAX;
/// Where the tree goes on behind a text that is not remembered.
const BEHIND_ANY_OF_EVENT: Place = Place(1);
const BEHIND_ANY_OF_ARGUMENTS: Place = Place(2);

#[derive(Clone, Debug)]
struct Node {
    text: [u8; LONGEST],
    length: u32,
    step: Step,
    level: Level,
    children: u32,
    /// The child taken last: tried first.
    recent: u32,
    first_child: u32,
    sibling: u32,
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
pub struct Layout {
    nodes: Vec<Node>,
}

impl Layout {
    /// Before the first event.
    pub fn new() -> Self {
        let nameless = |level| Node::new(b"", Step::Skip, level);
        Self { nodes: [Level::Event, Level::Event, Level::Arguments].map(nameless).to_vec() }
    }

    /// Behind an event's opening bracket.
    pub const START: Place = Place(0);

    /// What comes next at `at`, behind the value that belongs to `place`, and where its value
    /// starts. [`Layout::step`] says what it means.
    #[inline(always)]
    pub fn next(&mut self, text: &[u8], at: usize, place: Place) -> Scan<(Place, usize)> {
        let recent = self.nodes[place.0 as usize].recent;
        if let Some(node) = self.nodes.get(recent as usize)
            && let Some(end) = node.predicts(text, at)
        {
            return Ok((Place(recent), end));
        }
        self.other(text, at, place)
    }

    /// What the text before the place found last means. Apart from [`Layout::next`], because a step
    /// and a place returned together cost a stall of the processor per key: a fifth of the time.
    #[inline(always)]
    pub fn step(&self, place: Place) -> Step {
        self.nodes[place.0 as usize].step
    }

    #[inline(never)]
    fn other(&mut self, text: &[u8], at: usize, place: Place) -> Scan<(Place, usize)> {
        let mut child = self.nodes[place.0 as usize].first_child;
        while let Some(node) = self.nodes.get(child as usize) {
            if let Some(end) = node.predicts(text, at) {
                self.nodes[place.0 as usize].recent = child;
                return Ok((Place(child), end));
            }
            child = node.sibling;
        }
        let level = self.nodes[place.0 as usize].level;
        let (step, end) = parse(text, at, level)?;
        Ok((self.remember(place, step, &text[at..end]), end))
    }

    fn remember(&mut self, place: Place, step: Step, text: &[u8]) -> Place {
        let level = match (step, self.nodes[place.0 as usize].level) {
            (Step::Arguments, _) | (Step::Keep(_) | Step::Skip, Level::Arguments) => {
                Level::Arguments
            }
            _ => Level::Event,
        };
        let full = self.nodes.len() >= MOST || self.nodes[place.0 as usize].children >= MOST_ALIKE;
        if text.len() > LONGEST || full || step == Step::SkipOnce {
            let place = match level {
                Level::Event => BEHIND_ANY_OF_EVENT,
                Level::Arguments => BEHIND_ANY_OF_ARGUMENTS,
            };
            self.nodes[place.0 as usize].step = step;
            return place;
        }
        let child = self.nodes.len() as u32;
        let mut node = Node::new(text, step, level);
        let parent = &mut self.nodes[place.0 as usize];
        node.sibling = parent.first_child;
        (parent.first_child, parent.recent) = (child, child);
        parent.children += 1;
        self.nodes.push(node);
        Place(child)
    }
}

impl Node {
    fn new(text: &[u8], step: Step, level: Level) -> Self {
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
        if self.length > 32 {
            let left = self.length as usize - 32;
            if more.get(..left) != rest.get(..left) {
                return None;
            }
        }
        Some(at + self.length as usize)
    }
}

/// Reads blanks, commas, a key and its colon, or a closing bracket.
///
/// A comma may be missing or too many: nothing else can be meant.
fn parse(text: &[u8], at: usize, level: Level) -> Scan<(Step, usize)> {
    let (key, at) = match member::find(text, at)? {
        Next::End(end) => return Ok((Step::End, end)),
        Next::Member(key, at) => (key.of(text), at),
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
            Step::Arguments if text[at] == b'{' => Ok((Step::Arguments, at + 1)),
            Step::Arguments => Ok((Step::SkipOnce, at)),
            step => Ok((step, at)),
        },
    }
}
