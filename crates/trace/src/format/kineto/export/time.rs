//! Chooses how a file writes times. Times are whole microseconds if all parts have whole
//! microseconds. Otherwise, times have three decimals and are relative to a base time.

use crate::format::kineto::number;
use crate::merge::{Merged, MergedPart};

const SECOND: i64 = 1_000_000_000;

/// The time format of a file, and the base to which its times are relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenClock {
    /// Unix time in nanoseconds that is subtracted from all times.
    pub base_ns: i64,
    /// First time in the file, or `None` if it has no events.
    pub first: Option<i64>,
    unit: TimeUnit,
}

/// The notation of times in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeUnit {
    /// Microseconds without decimals, as PyTorch wrote them until 2023.
    Whole,
    Decimals,
}

impl WrittenClock {
    /// Chooses the time format. If all parts have whole microseconds and no base, times count from
    /// 1970. Other times count from the parts' common base. Without a common base, times count from
    /// the full second before the first time, so that readers that store times as floats lose no
    /// digits.
    pub fn new(merged: &Merged<'_>) -> Self {
        let first = merged.first_time();
        let mut is_whole = true;
        for part in &merged.parts {
            part.each_time(|time| {
                is_whole &= time % 1000 == 0;
            });
            is_whole &= part.trace.slices.duration.iter().all(|duration| duration % 1000 == 0);
        }
        let base = |part: &MergedPart<'_>| part.trace.header.base_time_ns;
        let shared = merged.parts.first().map_or(0, base);
        let is_shared = merged.parts.iter().all(|part| base(part) == shared);
        let (base_ns, unit) = match (is_whole, is_shared, shared) {
            (true, true, 0) => (0, TimeUnit::Whole),
            (_, true, base) if base != 0 => (base, TimeUnit::Decimals),
            _ => (first.unwrap_or(0).div_euclid(SECOND) * SECOND, TimeUnit::Decimals),
        };
        Self { base_ns, first, unit }
    }

    /// Appends an absolute time, converted to the file's base and unit.
    pub fn push_time(self, out: &mut Vec<u8>, time: i64) {
        self.push_duration(out, time.wrapping_sub(self.base_ns));
    }

    /// Appends a duration in the file's unit.
    pub fn push_duration(self, out: &mut Vec<u8>, duration: i64) {
        match self.unit {
            TimeUnit::Whole => number::push_signed(out, duration / 1000),
            TimeUnit::Decimals => number::push_micros(out, duration),
        }
    }
}
