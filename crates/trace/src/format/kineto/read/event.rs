//! Stores the fields that are kept of one event, as ranges of its text and as numbers.

use super::key::{ARGUMENTS, Argument};

/// The content of a string, as a range of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextRange {
    /// Position after the opening quote of the string.
    pub start: usize,
    pub end: usize,
    /// Whether the content is printable ASCII without escapes, so that it needs no decoding.
    pub plain: bool,
}

impl TextRange {
    /// Returns the bytes of the range.
    #[inline(always)]
    pub fn slice(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// A process id, a thread id, or the id of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Id {
    /// The key is absent, or its value has no meaning.
    #[default]
    Missing,
    Number(i64),
    Text(TextRange),
    /// A number that does not fit an `i64`, or any other value.
    Other(TextRange),
}

/// A time or a duration of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    #[default]
    Missing,
    /// The value is not a number, or it is out of range.
    Bad,
    Nanos(i64),
}

/// The value of an argument that is expected to be an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    Unsigned(u64),
    /// A negative number, stored as its magnitude.
    Negative(u64),
    /// The value is null, or the text of an address, which has no column.
    Missing,
    Bad,
}

/// All values that are kept of one event. A worker reuses one instance for all its events.
#[derive(Clone, Debug)]
pub struct KeptEvent {
    /// Value of `ph`, or `None` if the event has no such key.
    pub phase: Option<TextRange>,
    pub category: TextRange,
    pub name: TextRange,
    pub process: Id,
    pub thread: Id,
    pub time: Time,
    pub duration: Time,
    pub id: Id,
    /// Position after the opening bracket of the arguments, or 0 if there are none.
    pub arguments: usize,
    /// Number of strings whose end was guessed.
    pub repaired: u32,
    /// One bit per argument, which is set if the argument is present.
    seen: u64,
    /// One bit per argument, which is set if its value is an integer.
    integer: u64,
    /// One bit per argument, which is set if its value is a negative integer.
    negative: u64,
    /// One bit per argument, which is set if its value should be an integer but is not.
    bad: u64,
    magnitude: [u64; ARGUMENTS],
    content: [TextRange; ARGUMENTS],
    triples: [[u32; 3]; 2],
    pub unfinished: bool,
}

impl KeptEvent {
    /// Creates an event without any values.
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

    /// Resets all values for the next event.
    pub fn clear(&mut self) {
        self.phase = None;
        self.category = TextRange::default();
        self.name = TextRange::default();
        (self.process, self.thread, self.id) = (Id::Missing, Id::Missing, Id::Missing);
        (self.time, self.duration) = (Time::Missing, Time::Missing);
        self.repaired = 0;
        // Arrays keep their old values, because the bits decide which of them are valid.
        self.clear_arguments(0);
    }

    /// Removes all arguments. The text of the next arguments starts at `start`.
    pub fn clear_arguments(&mut self, start: usize) {
        self.arguments = start;
        (self.seen, self.integer, self.negative, self.bad) = (0, 0, 0, 0);
        self.unfinished = false;
    }

    /// Marks an argument as present, whatever its value is.
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

    /// Sets the argument `grid` or `block`. A size is `None` if the text was not an integer.
    #[inline(always)]
    pub fn set_triple(&mut self, argument: Argument, triple: [Option<u32>; 3]) {
        self.triples[triple_index(argument)] = triple.map(Option::unwrap_or_default);
        self.bad &= !bit(argument);
        if triple.contains(&None) {
            self.bad |= bit(argument);
        }
    }

    /// Returns where the content of an argument is to be stored, and the counter of repaired
    /// strings.
    #[inline(always)]
    pub fn content_mut(&mut self, argument: Argument) -> (&mut TextRange, &mut u32) {
        (&mut self.content[argument as usize], &mut self.repaired)
    }

    /// Whether any argument in the mask is present.
    #[inline(always)]
    pub fn has_any(&self, mask: u64) -> bool {
        self.seen & mask != 0
    }

    /// Whether an argument is present, whatever its value is.
    #[inline(always)]
    pub fn has(&self, argument: Argument) -> bool {
        self.has_any(bit(argument))
    }

    /// Returns the value of an argument if it is a non-negative integer.
    #[inline(always)]
    pub fn unsigned(&self, argument: Argument) -> Option<u64> {
        let is_present = self.integer & !self.negative & bit(argument) != 0;
        is_present.then(|| self.magnitude[argument as usize])
    }

    /// Returns the value of an argument if it is an integer.
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

    /// Returns the content of an argument that is a text, or of a number that is kept as text.
    #[inline(always)]
    pub fn content(&self, argument: Argument) -> TextRange {
        if self.has(argument) { self.content[argument as usize] } else { TextRange::default() }
    }

    /// Returns the value of `grid` or `block`, which is zeros if the argument is absent.
    pub fn triple(&self, argument: Argument) -> [u32; 3] {
        if self.has(argument) { self.triples[triple_index(argument)] } else { [0; 3] }
    }

    /// Counts the arguments in the mask that should be integers but are not.
    pub fn bad_integers(&self, mask: u64) -> u32 {
        (self.bad & mask).count_ones()
    }
}

/// Returns the bit of an argument in a mask.
#[inline(always)]
pub const fn bit(argument: Argument) -> u64 {
    1 << argument as u32
}

fn triple_index(argument: Argument) -> usize {
    usize::from(argument == Argument::Block)
}
