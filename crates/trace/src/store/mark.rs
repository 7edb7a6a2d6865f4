//! Events without a duration.

use super::{StringId, TrackId};

/// Which end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    Start,
    Step,
    End,
}

/// One end of an arrow; ids are unique within a category only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub phase: FlowPhase,
    /// Category, such as `ac2g` or `fwdbwd`.
    pub category: u8,
    pub id: u64,
    /// Track of the slice it is bound to.
    pub track: TrackId,
    /// Absolute nanoseconds: the start of the slice it is bound to.
    pub time: i64,
}

/// One value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    pub name: StringId,
    /// Which of its series.
    pub series: StringId,
    pub track: TrackId,
    /// Absolute nanoseconds.
    pub time: i64,
    /// The value; NaN if the file has no number.
    pub value: f64,
}

/// A point in time, such as `Record Window End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    pub name: StringId,
    /// Its category; may be the empty one.
    pub category: u8,
    pub track: TrackId,
    /// Absolute nanoseconds.
    pub time: i64,
}

/// A `[memory]` event: an allocation, or a free if `bytes` is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Absolute nanoseconds.
    pub time: i64,
    pub address: u64,
    /// Bytes allocated; negative: freed.
    pub bytes: i64,
    pub total_allocated: i64,
    pub total_reserved: i64,
    /// 0: host, 1: CUDA.
    pub device_type: i32,
    /// Ordinal; −1 for the host.
    pub device: i32,
    pub track: TrackId,
}
