//! Step times of one process, with and without a trace in progress. The module reads no clock and
//! no process.

use std::collections::VecDeque;

/// Number of intervals between updates that are kept. At one update per second, they cover two
/// minutes.
const KEPT: usize = 120;
/// Smallest number of steps from which a mean is computed.
const STEPS_MIN: u64 = 10;
/// Smallest number of windows from which a standard deviation is computed.
const WINDOWS_MIN: usize = 4;

/// A number of timed steps, with the sum of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTotals {
    pub steps: u64,
    /// Sum of the times of these steps in nanoseconds.
    pub ns: u64,
}

/// Step times of one process in the last two minutes, without the steps that were traced.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Totals of the process at the last update.
    last: Option<StepTotals>,
    /// Number and time of the untraced steps between each two updates.
    untraced: VecDeque<StepTotals>,
}

/// Slowdown of steps during a trace, with the standard deviation that steps show without a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Mean step time during the trace relative to the mean before the trace, minus 1.
    pub share: f64,
    /// Standard deviation of `share` between windows of as many untraced steps. `None` if there
    /// were too few windows.
    pub spread: Option<f64>,
}

impl StepTotals {
    /// Steps since earlier totals. Returns `None` if the earlier totals are larger, because they
    /// belong to another process.
    fn since(self, before: Self) -> Option<Self> {
        let steps = self.steps.checked_sub(before.steps)?;
        Some(Self { steps, ns: self.ns.saturating_sub(before.ns) })
    }

    fn plus(self, other: Self) -> Self {
        Self { steps: self.steps + other.steps, ns: self.ns + other.ns }
    }

    fn mean(self) -> Option<f64> {
        (self.steps > 0).then(|| self.ns as f64 / self.steps as f64)
    }
}

impl StepTimes {
    /// Updates the totals. The steps since the last update count as untraced.
    pub fn add_untraced(&mut self, now: StepTotals) {
        let made = self.move_on(now).filter(|made| made.steps > 0);
        if let Some(made) = made {
            if self.untraced.len() == KEPT {
                self.untraced.pop_front();
            }
            self.untraced.push_back(made);
        }
    }

    /// Updates the totals. The steps since the last update are ignored, because some of them were
    /// traced.
    pub fn add_traced(&mut self, now: StepTotals) {
        self.move_on(now);
    }

    fn move_on(&mut self, now: StepTotals) -> Option<StepTotals> {
        let made = now.since(self.last.replace(now)?);
        if made.is_none() {
            // The totals decreased, so another process has reused the process id.
            self.untraced.clear();
        }
        made
    }

    /// The totals of the process at the last update.
    pub fn now(&self) -> StepTotals {
        self.last.unwrap_or_default()
    }

    /// Mean time of an untraced step in nanoseconds. `None` if there were too few steps.
    pub fn mean(&self) -> Option<f64> {
        let all = self.untraced.iter().fold(StepTotals::default(), |all, one| all.plus(*one));
        (all.steps >= STEPS_MIN).then(|| all.mean())?
    }

    /// Computes the slowdown of a trace that ran from the last update until `now`, relative to the
    /// untraced steps before it.
    pub fn slowdown_until(&self, now: StepTotals) -> Option<Slowdown> {
        let traced = now.since(self.now())?;
        let mean = self.mean().filter(|mean| *mean > 0.0)?;
        let share = traced.mean()? / mean - 1.0;
        Some(Slowdown { share, spread: self.spread(traced.steps).map(|spread| spread / mean) })
    }

    /// Standard deviation of the mean step time between windows of at least `steps` steps.
    ///
    /// Windows contain several steps because disturbances last longer than a step. The mean of `n`
    /// steps therefore varies by more than the variation of single steps divided by `√n`.
    fn spread(&self, steps: u64) -> Option<f64> {
        let mut means = Vec::new();
        let mut window = StepTotals::default();
        for made in &self.untraced {
            window = window.plus(*made);
            if window.steps >= steps {
                means.extend(std::mem::take(&mut window).mean());
            }
        }
        let count = means.len() as f64;
        let middle = means.iter().sum::<f64>() / count;
        let squares: f64 = means.iter().map(|mean| (mean - middle).powi(2)).sum();
        (means.len() >= WINDOWS_MIN).then(|| (squares / (count - 1.0)).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Slowdown, StepTimes, StepTotals};

    #[test]
    fn the_mean_covers_the_last_minutes_of_one_process() {
        let mut times = StepTimes::default();
        assert_eq!(times.mean(), None);
        let mut now = StepTotals { steps: 1, ns: 5 };
        for second in 0..1000_u64 {
            now.steps += 4;
            now.ns += if second < 500 { 400 } else { 800 };
            times.add_untraced(now);
            times.add_untraced(now);
            assert_eq!(times.mean().is_some(), second >= 3, "{second}");
        }
        assert_eq!((times.mean(), times.untraced.len()), (Some(200.0), KEPT));
        let later = StepTotals { steps: now.steps + 2, ns: now.ns + 100 };
        assert_eq!(times.slowdown_until(later), Some(Slowdown { share: -0.75, spread: Some(0.0) }));
        times.add_untraced(StepTotals { steps: 3, ns: 3 });
        assert_eq!((times.mean(), times.untraced.len()), (None, 0));
    }

    #[test]
    fn traced_steps_count_neither_for_the_mean_nor_for_the_spread() {
        let mut times = StepTimes::default();
        let mut now = StepTotals::default();
        for second in 0..40_u64 {
            now.steps += 10;
            let is_traced = second % 4 == 3;
            now.ns += if is_traced { 50_000 } else { 1000 + 20 * (second / 20) };
            if is_traced { times.add_traced(now) } else { times.add_untraced(now) }
        }
        let mean = times.mean().unwrap();
        assert!((100.0..102.0).contains(&mean), "{mean}");
        let traced = |steps| {
            times.slowdown_until(StepTotals { steps: now.steps + steps, ns: now.ns + steps * 202 })
        };
        let Some(Slowdown { share, spread: Some(spread) }) = traced(20) else {
            panic!("no spread")
        };
        assert!((share - 1.0).abs() < 0.01, "{share}");
        assert!((0.005..0.02).contains(&spread), "half of the windows are 2 % slower: {spread}");
        assert_eq!(traced(100).unwrap().spread, None, "two windows of 100 steps are too few");
        assert_eq!(traced(0), None);
    }
}
