//! Defines the clock of a recording, which counts monotonic nanoseconds from a known Unix time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use schema::Nanos;

/// A monotonic clock. Copies of a clock share its zero, so all ranks of a process use copies of one
/// clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
    base_time_ns: i64,
}

impl Clock {
    /// Starts a clock whose zero is the current time.
    #[must_use]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base_time_ns = i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX);
        Self { zero: Instant::now(), base_time_ns }
    }

    /// Returns the time that has passed since the clock's zero.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.at(Instant::now())
    }

    /// Converts a point in time, which is not before the clock's zero.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Nanos {
        let since_zero = instant.saturating_duration_since(self.zero);
        Nanos(i64::try_from(since_zero.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Returns the Unix time of the clock's zero in nanoseconds, for
    /// [`super::RunInfo::base_time_ns`].
    #[must_use]
    pub fn base_time_ns(&self) -> i64 {
        self.base_time_ns
    }
}
