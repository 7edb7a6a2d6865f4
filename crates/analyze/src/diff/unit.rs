//! A rank's window in units that can be compared: its steps, or itself.

use serde::Serialize;

use crate::interval::Interval;
use crate::quality::Evidence;
use crate::window::WindowRule;

/// What times are per.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A step of a rank, from its start to the next one's.
    Step,
    /// The window of a rank.
    Window,
}

impl Unit {
    /// The finest that all ranks have.
    pub fn of<'a>(mut ranks: impl Iterator<Item = &'a Evidence<'a>>) -> Self {
        let has_steps = |rank: &Evidence<'_>| {
            let window = &rank.scope.window;
            window.rule == WindowRule::Steps && !window.steps.is_empty()
        };
        if ranks.all(has_steps) { Self::Step } else { Self::Window }
    }
}

/// A rank with its units.
pub struct Sample<'a> {
    /// What is known of the rank.
    pub evidence: &'a Evidence<'a>,
    /// One behind the other, from the window's start to its end.
    pub units: Vec<Interval>,
    /// Units of the ranks before.
    pub first: usize,
}

impl Sample<'_> {
    /// The unit a time is in, counted over all ranks; `None` outside the window.
    pub fn unit_at(&self, time: i64) -> Option<usize> {
        let behind = self.units.partition_point(|(start, _)| *start <= time);
        let unit = behind.checked_sub(1)?;
        (time < self.units[unit].1).then_some(self.first + unit)
    }
}

/// The ranks of one side.
pub fn samples<'a>(ranks: &'a [Evidence<'a>], unit: Unit) -> Vec<Sample<'a>> {
    let mut first = 0;
    let sample = |evidence: &'a Evidence<'a>| {
        let window = &evidence.scope.window;
        let starts: Vec<i64> = match unit {
            Unit::Step => window.steps.iter().map(|step| step.start).collect(),
            Unit::Window => vec![window.start],
        };
        let ends = starts.iter().skip(1).copied().chain([window.end]);
        let units: Vec<Interval> = starts.iter().copied().zip(ends).collect();
        let sample = Sample { evidence, units, first };
        first += sample.units.len();
        sample
    };
    ranks.iter().map(sample).collect()
}
