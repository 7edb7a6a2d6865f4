//! Options of an export, and the counts of what was written.

/// Options of an export that do not depend on the format.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub overlaps: Overlaps,
    pub arguments: WhichArguments,
    /// Counters computed from the traces, written in addition to the recorded ones.
    pub counters: Vec<Counter>,
}

/// Treatment of slices that overlap others on their track without nesting. Viewers drop such
/// slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlaps {
    /// They move to separate lines such as "stream 7 (lane 2)".
    Lanes,
    /// They stay on their track, as in the source file.
    Keep,
}

/// Selects where the arguments of slices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichArguments {
    /// All arguments, read again from the source file. If that fails, the typed ones.
    All,
    /// Only the arguments that are stored in columns. Needs no source file.
    Typed,
}

/// A computed time series, such as queue length or exposed communication.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub rank: u32,
    pub name: String,
    /// Unit of the values; may be empty.
    pub unit: String,
    /// Pairs of a time in absolute nanoseconds on the rank's clock, and the value from then on.
    pub samples: Vec<(i64, f64)>,
}

/// Numbers of events in a written file, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportedEvents {
    /// Events with a duration.
    pub slices: u64,
    /// Slices that moved to a lane of their own.
    pub slices_moved: u64,
    /// Slices with typed arguments only, because their text could not be read again.
    pub slices_typed_only: u64,
    pub flows: u64,
    pub counters: u64,
    /// Points in time, including allocations.
    pub instants: u64,
}
