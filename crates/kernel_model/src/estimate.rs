//! A predicted time with an interval around it, and the arithmetic on such times.

use serde::Serialize;

/// The lowest and the highest factor by which a time may differ from its estimate.
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

    /// Returns whether a time lies within the interval.
    #[must_use]
    pub fn covers(&self, ns: f64) -> bool {
        (self.low_ns..=self.high_ns).contains(&ns)
    }

    /// Multiplies mean, low and high by a factor that is not negative.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.combine(self, |ns, _| factor * ns)
    }

    /// Adds the times of two activities that follow each other. The errors of both estimates may be
    /// correlated, so the bounds of the intervals are added too.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Takes the maxima of mean, low and high, for two activities that run in parallel.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, f64::max)
    }

    /// Subtracts the time of an activity that overlaps this one. The result is at least 0.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        self.combine(other, |a, b| (a - b).max(0.0))
    }

    /// Takes the minima of mean, low and high.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        self.combine(other, f64::min)
    }

    fn combine(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            mean_ns: combine(self.mean_ns, other.mean_ns),
            low_ns: combine(self.low_ns, other.low_ns),
            high_ns: combine(self.high_ns, other.high_ns),
        }
    }
}
