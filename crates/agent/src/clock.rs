//! The wall clock in nanoseconds, and a counter of its jumps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts jumps of the wall clock, and the counter rows that were discarded because of them.
#[derive(Debug, Default)]
pub struct ClockTally {
    forward: AtomicU64,
    back: AtomicU64,
    discarded: AtomicU64,
}

impl ClockTally {
    /// Counts one jump of the wall clock by `ns` nanoseconds, which is negative if the clock was
    /// set back.
    pub fn jumped(&self, ns: i64) {
        let way = if ns > 0 { &self.forward } else { &self.back };
        way.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows that were discarded because rows of the same intervals had already been written.
    pub fn discard(&self, rows: u64) {
        self.discarded.fetch_add(rows, Ordering::Relaxed);
    }

    /// The number of jumps of the wall clock, by direction: forward and back.
    pub fn jumps(&self) -> [(&'static str, u64); 2] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("forward", read(&self.forward)), ("back", read(&self.back))]
    }

    /// The number of rows discarded because rows of the same intervals had already been written.
    pub fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }
}

/// Reads the wall clock, in nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}
