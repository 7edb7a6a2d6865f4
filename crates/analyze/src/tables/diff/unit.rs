//! Cuts a rank's window into units that can be compared, which are its steps or the whole window.

use serde::Serialize;

use crate::facts::attribution::Attribution;
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;
use crate::facts::window::WindowRule;

/// The unit to which the times of a comparison refer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffUnit {
    /// One step of one rank, from its start to the start of the next step.
    Step,
    /// The whole window of one rank.
    Window,
}

impl DiffUnit {
    /// Chooses steps if the windows of all ranks consist of whole steps, and windows otherwise.
    pub fn choose<'a>(mut scopes: impl Iterator<Item = &'a Scope<'a>>) -> Self {
        let has_steps = |scope: &Scope<'_>| {
            let window = &scope.window;
            window.rule == WindowRule::Steps && !window.steps.is_empty()
        };
        if scopes.all(has_steps) { Self::Step } else { Self::Window }
    }
}

/// A rank of one side with its units.
pub struct RankUnits<'a> {
    pub scope: &'a Scope<'a>,
    pub tree: &'a OperatorTree,
    /// Owners of the rank's device work.
    pub attribution: &'a Attribution,
    /// Consecutive spans that cover the window from start to end.
    pub units: Vec<Interval>,
    /// Number of units of all ranks before this one.
    pub first: usize,
}

impl RankUnits<'_> {
    /// Returns the index of the unit that contains a time, counted over all ranks, or `None`
    /// outside the window.
    pub fn unit_at(&self, time: i64) -> Option<usize> {
        let behind = self.units.partition_point(|(start, _)| *start <= time);
        let unit = behind.checked_sub(1)?;
        (time < self.units[unit].1).then_some(self.first + unit)
    }
}

/// Cuts the windows of all ranks of one side into units.
pub fn samples<'a>(ranks: &'a [RankFacts<'_>], unit: DiffUnit) -> Vec<RankUnits<'a>> {
    let mut first = 0;
    let mut samples = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let window = &rank.scope.window;
        let starts: Vec<i64> = match unit {
            DiffUnit::Step => window.steps.iter().map(|step| step.start).collect(),
            DiffUnit::Window => vec![window.start],
        };
        let ends = starts.iter().skip(1).copied().chain([window.end]);
        let units: Vec<Interval> = starts.iter().copied().zip(ends).collect();
        let count = units.len();
        let (tree, attribution) = (rank.tree(), rank.attribution());
        samples.push(RankUnits { scope: rank.scope, tree, attribution, units, first });
        first += count;
    }
    samples
}
