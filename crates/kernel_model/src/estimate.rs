//! A time with its interval.

use serde::Serialize;

/// Lowest and highest factor on a time.
pub type Factors = (f64, f64);

/// A time and what it lies between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    pub mean_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
}

impl Estimate {
    /// Between a share of the time and a multiple of it.
    #[must_use]
    pub fn within(mean_ns: f64, (low, high): Factors) -> Self {
        Self { mean_ns, low_ns: mean_ns * low, high_ns: mean_ns * high }
    }

    /// One after the other. Both may be wrong in the same direction: the interval adds up.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// The slower one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, f64::max)
    }

    /// What is left of it after another time; none of it is below 0.
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
