//! A predicted time with an interval around it.

use serde::Serialize;

/// Lowest and highest factor on a time.
pub type Factors = (f64, f64);

/// A predicted time with an interval around it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    pub mean_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
}

impl Estimate {
    /// Creates an estimate whose interval is the mean times a lowest and a highest factor.
    #[must_use]
    pub fn within(mean_ns: f64, (low, high): Factors) -> Self {
        Self { mean_ns, low_ns: mean_ns * low, high_ns: mean_ns * high }
    }

    /// Adds the times of two things that follow each other. Their errors may be correlated, so the
    /// intervals add up.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Takes the maximum of mean, low and high, for two things that run in parallel.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, f64::max)
    }

    /// Subtracts a time that overlaps this one, at least 0.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        self.combine(other, |a, b| (a - b).max(0.0))
    }

    fn combine(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            mean_ns: combine(self.mean_ns, other.mean_ns),
            low_ns: combine(self.low_ns, other.low_ns),
            high_ns: combine(self.high_ns, other.high_ns),
        }
    }
}
