//! Defines the options of an export, and the counts of the events that were written.

/// Options of an export that do not depend on the format.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub overlaps: Overlaps,
    pub arguments: WhichArguments,
    /// Counters computed from the traces, which are written in addition to the recorded ones.
    pub counters: Vec<Counter>,
}

/// Selects what happens to slices that overlap others on their track without nesting, because
/// viewers drop such slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlaps {
    /// Overlapping slices move to separate lines such as "stream 7 (lane 2)".
    Lanes,
    /// Overlapping slices stay on their track, as in the source file.
    Keep,
}

/// Selects where the arguments of slices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichArguments {
    /// All arguments are read again from the source file. If the source file cannot be read, the
    /// arguments that are stored in columns are written instead.
    All,
    /// Only the arguments that are stored in columns are written, so no source file is needed.
    Typed,
}

/// A computed time series, such as the length of a queue or the exposed communication.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub rank: u32,
    pub name: String,
    /// Unit of the counter's values, which may be empty.
    pub unit: String,
    /// Samples as pairs of a time and the value that the counter has from this time on. Times are
    /// in absolute nanoseconds of the rank's clock.
    pub samples: Vec<(i64, f64)>,
}

/// Numbers of events in a written file, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportedEvents {
    /// Number of events with a duration.
    pub slices: u64,
    /// Number of slices that moved to a lane of their own.
    pub slices_moved: u64,
    /// Number of slices that have only the arguments stored in columns, because their text could
    /// not be read again.
    pub slices_typed_only: u64,
    pub flows: u64,
    pub counters: u64,
    /// Number of events at a point in time, including allocations.
    pub instants: u64,
}
