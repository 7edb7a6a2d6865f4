//! Defines the events without a duration: flows, counters, instants and allocations.

use super::{StringId, TrackId};

/// Tells whether a flow event begins an arrow, continues it or ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    Start,
    Step,
    End,
}

/// One end of an arrow between two slices. Flow ids are unique only within a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub phase: FlowPhase,
    /// Index of the flow's category, such as `ac2g` or `fwdbwd`, in
    /// [`Trace::categories`](super::Trace::categories).
    pub category: u8,
    pub id: u64,
    /// The track of the slice to which this end of the arrow is bound.
    pub track: TrackId,
    /// Start of the slice to which this end of the arrow is bound, in absolute nanoseconds.
    pub time: i64,
}

/// One sample of a counter at a point in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    pub name: StringId,
    pub series: StringId,
    pub track: TrackId,
    /// Absolute time in nanoseconds.
    pub time: i64,
    /// Value of the counter from this time on, or NaN if the file has no number.
    pub value: f64,
}

/// An event at a point in time, such as `Record Window End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    pub name: StringId,
    /// Index of the category in [`Trace::categories`](super::Trace::categories), which may be the
    /// empty category.
    pub category: u8,
    pub track: TrackId,
    /// Absolute time in nanoseconds.
    pub time: i64,
}

/// A `[memory]` event of PyTorch's memory profiler: an allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Absolute time in nanoseconds.
    pub time: i64,
    pub address: u64,
    /// Size of the allocation in bytes, as a negative number for a free.
    pub bytes: i64,
    pub total_allocated: i64,
    pub total_reserved: i64,
    /// PyTorch's number of the device type: 0 is the host, and 1 is CUDA.
    pub device_type: i32,
    /// Ordinal of the device, or −1 for the host.
    pub device: i32,
    pub track: TrackId,
}
