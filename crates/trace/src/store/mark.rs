//! Events without a duration.

use super::{StringId, TrackId};

/// Which end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    /// `s`.
    Start,
    /// `t`.
    Step,
    /// `f`.
    End,
}

/// One end of an arrow; ids are unique within a category only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Which end.
    pub phase: FlowPhase,
    /// Category, such as `ac2g` or `fwdbwd`.
    pub category: u8,
    /// Joins the ends.
    pub id: u64,
    /// Track of the slice it is bound to.
    pub track: TrackId,
    /// Absolute nanoseconds: the start of the slice it is bound to.
    pub time: i64,
}

/// One value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    /// The counter.
    pub name: StringId,
    /// Which of its series.
    pub series: StringId,
    /// Its track.
    pub track: TrackId,
    /// Absolute nanoseconds.
    pub time: i64,
    /// The value; NaN if the file has no number.
    pub value: f64,
}

/// A point in time, such as `Record Window End`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    /// Its name.
    pub name: StringId,
    /// Its category; may be the empty one.
    pub category: u8,
    /// Its track.
    pub track: TrackId,
    /// Absolute nanoseconds.
    pub time: i64,
}

/// A `[memory]` event: an allocation, or a free if `bytes` is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Absolute nanoseconds.
    pub time: i64,
    /// Address.
    pub address: u64,
    /// Bytes allocated; negative: freed.
    pub bytes: i64,
    /// `Total Allocated` afterwards.
    pub total_allocated: i64,
    /// `Total Reserved` afterwards.
    pub total_reserved: i64,
    /// 0: host, 1: CUDA.
    pub device_type: i32,
    /// Ordinal; −1 for the host.
    pub device: i32,
    /// The thread.
    pub track: TrackId,
}
