//! The requested content of a file, and what was written.

/// What a file is to hold besides the traces, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What becomes of slices that overlap others of their track.
    pub overlaps: Overlaps,
    /// Which arguments are written.
    pub arguments: WhichArguments,
    /// Counters that were computed from the traces.
    pub counters: Vec<Counter>,
}

/// What becomes of slices that overlap others of their track without nesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlaps {
    /// They get lines of their own, "stream 7 (lane 2)": viewers drop them otherwise.
    Lanes,
    /// They stay on their track, as in the file that was read.
    Keep,
}

/// Which arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichArguments {
    /// All of the file that was read, which is read once more. Where that fails, the typed ones.
    All,
    /// Those the columns of a trace hold.
    Typed,
}

/// A counter that was computed: queue length, exposed communication.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub rank: u32,
    pub name: String,
    /// Its unit; may be empty.
    pub unit: String,
    /// Absolute nanoseconds on the rank's own clock, and the value from then on.
    pub samples: Vec<(i64, f64)>,
}

/// What a written file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportedEvents {
    /// Events with a duration.
    pub slices: u64,
    /// Of those, how many moved to a lane of their own.
    pub slices_moved: u64,
    /// Of those, how many have their typed arguments only: their text could not be read again.
    pub slices_typed_only: u64,
    pub flows: u64,
    pub counters: u64,
    /// Points in time, allocations included.
    pub instants: u64,
}
