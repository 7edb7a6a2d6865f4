//! Step times: over the last minutes, and during a trace. Knows no process.

use std::collections::VecDeque;

/// Moments that are kept: at one a second, two minutes.
const KEPT: usize = 120;
/// Fewer steps than this are no measure.
const STEPS_MIN: u64 = 10;

/// Steps whose time is known, and their time, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// How many.
    pub steps: u64,
    /// Nanoseconds of all of them.
    pub ns: u64,
}

/// The last moments of one process.
#[derive(Clone, Debug, Default)]
pub struct StepPace {
    moments: VecDeque<Timed>,
}

impl Timed {
    /// Nanoseconds of a step since an earlier moment; `None` where there was none.
    pub fn mean_since(self, before: Self) -> Option<f64> {
        let steps = self.steps.checked_sub(before.steps).filter(|steps| *steps > 0)?;
        Some(self.ns.saturating_sub(before.ns) as f64 / steps as f64)
    }
}

impl StepPace {
    /// Takes a moment in.
    pub fn saw(&mut self, now: Timed) {
        let last = self.now();
        if now.steps < last.steps {
            // The number of a process is another one's now.
            self.moments.clear();
        }
        if now != last || self.moments.is_empty() {
            if self.moments.len() == KEPT {
                self.moments.pop_front();
            }
            self.moments.push_back(now);
        }
    }

    /// The last moment.
    pub fn now(&self) -> Timed {
        self.moments.back().copied().unwrap_or_default()
    }

    /// Nanoseconds of a step over what is kept; `None` where there are too few.
    pub fn mean(&self) -> Option<f64> {
        let first = *self.moments.front()?;
        let is_enough = self.now().steps - first.steps >= STEPS_MIN;
        self.now().mean_since(first).filter(|_| is_enough)
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, StepPace, Timed};

    #[test]
    fn the_mean_is_of_the_last_minutes_and_of_one_process() {
        let mut pace = StepPace::default();
        assert_eq!(pace.mean(), None);
        let mut now = Timed { steps: 1, ns: 5 };
        for second in 0..1000_u64 {
            now.steps += 4;
            now.ns += if second < 500 { 400 } else { 800 };
            pace.saw(now);
            pace.saw(now);
            assert_eq!(pace.mean().is_some(), second >= 3, "{second}");
        }
        assert_eq!((pace.mean(), pace.moments.len()), (Some(200.0), KEPT));
        let later = Timed { steps: now.steps + 2, ns: now.ns + 100 };
        assert_eq!(later.mean_since(now), Some(50.0));
        assert_eq!(now.mean_since(later), None);
        pace.saw(Timed { steps: 3, ns: 3 });
        assert_eq!((pace.mean(), pace.moments.len()), (None, 1));
    }
}
