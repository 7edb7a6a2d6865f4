//! The parts we keep of one event: positions in its text, and values. Knows no JSON.

use super::key::{ARGUMENTS, Argument};

/// The content of a string: a range of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextRange {
    /// Behind the opening quote.
    pub start: usize,
    pub end: usize,
    /// Printable ASCII without escapes: the content is the text.
    pub plain: bool,
}

impl TextRange {
    /// Its bytes.
    #[inline(always)]
    pub fn slice(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// A process, a thread, or the id of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Id {
    /// No such key, or no value with a meaning.
    #[default]
    Missing,
    Number(i64),
    Text(TextRange),
    /// A number beyond an `i64`, or no integer.
    Other(TextRange),
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    #[default]
    Missing,
    /// No number, or one that does not fit.
    Bad,
    /// Nanoseconds.
    Nanos(i64),
}

/// The value of an argument that should be an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    Unsigned(u64),
    /// Below 0, by its magnitude.
    Negative(u64),
    /// None: null, or the text of an address.
    Missing,
    Bad,
}

/// What we keep of one event.
#[derive(Clone, Debug)]
pub struct KeptEvent {
    /// `ph`; `None` if it has none.
    pub phase: Option<TextRange>,
    pub category: TextRange,
    pub name: TextRange,
    pub process: Id,
    pub thread: Id,
    pub time: Time,
    pub duration: Time,
    pub id: Id,
    /// Where the arguments start, behind their bracket; 0 if there are none.
    pub arguments: usize,
    /// Strings whose end had to be guessed.
    pub repaired: u32,
    /// A bit per argument whose key is there.
    seen: u64,
    /// A bit per argument that is an integer.
    integer: u64,
    /// A bit per integer that is negative.
    negative: u64,
    /// A bit per argument that should be an integer and is another value.
    bad: u64,
    magnitude: [u64; ARGUMENTS],
    content: [TextRange; ARGUMENTS],
    triples: [[u32; 3]; 2],
    pub unfinished: bool,
}

impl KeptEvent {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            phase: None,
            category: TextRange::default(),
            name: TextRange::default(),
            process: Id::Missing,
            thread: Id::Missing,
            time: Time::Missing,
            duration: Time::Missing,
            id: Id::Missing,
            arguments: 0,
            repaired: 0,
            seen: 0,
            integer: 0,
            negative: 0,
            bad: 0,
            magnitude: [0; ARGUMENTS],
            content: [TextRange::default(); ARGUMENTS],
            triples: [[0; 3]; 2],
            unfinished: false,
        }
    }

    /// As new.
    pub fn clear(&mut self) {
        self.phase = None;
        self.category = TextRange::default();
        self.name = TextRange::default();
        (self.process, self.thread, self.id) = (Id::Missing, Id::Missing, Id::Missing);
        (self.time, self.duration) = (Time::Missing, Time::Missing);
        self.repaired = 0;
        self.clear_arguments(0);
    }

    /// Without arguments; those that follow start at `start`.
    pub fn clear_arguments(&mut self, start: usize) {
        self.arguments = start;
        (self.seen, self.integer, self.negative, self.bad) = (0, 0, 0, 0);
        self.unfinished = false;
    }

    /// Notes that an argument is there, whatever its value.
    #[inline(always)]
    pub fn note(&mut self, argument: Argument) {
        self.seen |= bit(argument);
    }

    /// Sets an argument that should be an integer.
    #[inline(always)]
    pub fn set_integer(&mut self, argument: Argument, value: Integer) {
        let bit = bit(argument);
        self.integer &= !bit;
        self.negative &= !bit;
        self.bad &= !bit;
        match value {
            Integer::Unsigned(magnitude) => {
                self.integer |= bit;
                self.magnitude[argument as usize] = magnitude;
            }
            Integer::Negative(magnitude) => {
                self.integer |= bit;
                self.negative |= bit;
                self.magnitude[argument as usize] = magnitude;
            }
            Integer::Missing => {}
            Integer::Bad => self.bad |= bit,
        }
    }

    /// Sets `grid` or `block`; a size that is `None` should have been one.
    #[inline(always)]
    pub fn set_triple(&mut self, argument: Argument, triple: [Option<u32>; 3]) {
        self.triples[triple_index(argument)] = triple.map(Option::unwrap_or_default);
        self.bad &= !bit(argument);
        if triple.contains(&None) {
            self.bad |= bit(argument);
        }
    }

    /// Where the content of an argument goes, and the count of repaired strings.
    #[inline(always)]
    pub fn content_mut(&mut self, argument: Argument) -> (&mut TextRange, &mut u32) {
        (&mut self.content[argument as usize], &mut self.repaired)
    }

    /// Whether any of the arguments of a mask is there.
    #[inline(always)]
    pub fn has_any(&self, mask: u64) -> bool {
        self.seen & mask != 0
    }

    /// Whether an argument is there, whatever its value.
    #[inline(always)]
    pub fn has(&self, argument: Argument) -> bool {
        self.has_any(bit(argument))
    }

    /// An argument that is an integer of 0 or more.
    #[inline(always)]
    pub fn unsigned(&self, argument: Argument) -> Option<u64> {
        let there = self.integer & !self.negative & bit(argument) != 0;
        there.then(|| self.magnitude[argument as usize])
    }

    /// An argument that is an integer.
    #[inline(always)]
    pub fn signed(&self, argument: Argument) -> Option<i64> {
        if self.integer & bit(argument) == 0 {
            return None;
        }
        let magnitude = self.magnitude[argument as usize];
        match self.negative & bit(argument) {
            0 => i64::try_from(magnitude).ok(),
            _ => 0i64.checked_sub_unsigned(magnitude),
        }
    }

    /// The content of an argument that is a text, or of a number kept as it stands.
    #[inline(always)]
    pub fn content(&self, argument: Argument) -> TextRange {
        if self.has(argument) { self.content[argument as usize] } else { TextRange::default() }
    }

    /// `grid` or `block`; zeros where there is none.
    pub fn triple(&self, argument: Argument) -> [u32; 3] {
        if self.has(argument) { self.triples[triple_index(argument)] } else { [0; 3] }
    }

    /// Whether any argument of the mask should be an integer and is not.
    pub fn bad_integers(&self, mask: u64) -> u32 {
        (self.bad & mask).count_ones()
    }
}

/// The bit of an argument.
#[inline(always)]
pub const fn bit(argument: Argument) -> u64 {
    1 << argument as u32
}

fn triple_index(argument: Argument) -> usize {
    usize::from(argument == Argument::Block)
}
