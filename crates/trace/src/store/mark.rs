//! Events without a duration: flows, counters, instants, allocations.

use super::{StringId, TrackId};

/// The position of an event in its arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    Start,
    Step,
    End,
}

/// One end of an arrow. Ids are unique within a category only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub phase: FlowPhase,
    /// Such as `ac2g` or `fwdbwd`.
    pub category: u8,
    pub id: u64,
    /// The track of the slice it is bound to.
    pub track: TrackId,
    /// Start of the slice it is bound to, in absolute nanoseconds.
    pub time: i64,
}

/// One sample of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    pub name: StringId,
    pub series: StringId,
    pub track: TrackId,
    /// Absolute time in nanoseconds.
    pub time: i64,
    /// NaN if the file has no number.
    pub value: f64,
}

/// A point in time, such as `Record Window End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    pub name: StringId,
    /// May be the empty category.
    pub category: u8,
    pub track: TrackId,
    /// Absolute time in nanoseconds.
    pub time: i64,
}

/// A `[memory]` event: an allocation, or a free if `bytes` is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Absolute time in nanoseconds.
    pub time: i64,
    pub address: u64,
    /// Negative for a free.
    pub bytes: i64,
    pub total_allocated: i64,
    pub total_reserved: i64,
    /// 0 is the host, 1 is CUDA.
    pub device_type: i32,
    /// Ordinal; −1 for the host.
    pub device: i32,
    pub track: TrackId,
}
