//! Compares two recordings of a job and reports what changed, and how much of the change of a step
//! each change explains.
//!
//! Both sides are cut into units, which are steps or whole windows. Each figure is the mean over
//! the units of all ranks. A change that the scatter of the units explains counts as noise.

mod change;
mod parts;
mod spent;
#[cfg(test)]
mod tests;
mod unit;
mod verdict;

use serde::Serialize;

use crate::facts::distribution::{self, Durations};
use crate::facts::job::JobFacts;
use crate::percent::percent;
use change::{Shift, lengths, mean};
use spent::Spent;
use unit::RankUnits;

pub use change::{DiffSubject, PartChange, Presence, SpentChange};
pub use unit::DiffUnit;
pub use verdict::{Cause, DiffOutcome, DiffVerdict};

/// The result of comparing two recordings of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    pub verdict: DiffVerdict,
    /// The unit (step or window) to which times and counts refer.
    pub unit: DiffUnit,
    /// Share of the operators' host time that lies under operator names of both sides, in percent.
    /// In recordings without operators, it is the share of the kernels' device time; without
    /// kernels, it is `None`.
    pub shared_pct: Option<f64>,
    pub before: DiffSide,
    pub after: DiffSide,
    /// Parts into which the time of a unit divides, as medians over the units like in the table of
    /// steps. The means of the parts add up to the mean unit, and so do their changes.
    pub parts: Vec<PartChange>,
    /// Totals that overlap each other, which are busy time, all communication and all copies.
    pub totals: Vec<PartChange>,
    /// Changes of the time spent on each kernel, operator and call, sorted by subject, then by size
    /// of the change in descending order.
    pub changes: Vec<SpentChange>,
}

/// One of the two recordings that are compared, with the spread of its units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffSide {
    pub rank_count: u64,
    pub unit_count: u64,
    pub window_ns: i64,
    #[serde(flatten)]
    pub durations: Durations,
}

/// Compares two recordings, each of which has one or several ranks.
///
/// Units are steps if every window of both sides consists of whole steps, and windows otherwise.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of both sides.
pub fn compare_jobs(before: &JobFacts<'_>, after: &JobFacts<'_>) -> Diff {
    let unit = DiffUnit::choose(before.scopes().iter().chain(after.scopes()));
    let before = unit::samples(&before.ranks, unit);
    let after = unit::samples(&after.ranks, unit);
    let sides = [side(&before), side(&after)];
    let whole = Shift::new(&lengths(&before), &lengths(&after));
    let (parts, totals) = parts::compare_parts(&before, &after);
    let mut changes = Vec::new();
    let unit_ns = mean(&lengths(&before));
    for subject in [
        DiffSubject::Kernel,
        DiffSubject::Operator,
        DiffSubject::Path,
        DiffSubject::Host,
        DiffSubject::Call,
    ] {
        let spent = [&before, &after].map(|samples| spent::collect_spent(samples, subject));
        changes.extend(compare(subject, spent, unit_ns));
    }
    let [before, after] = sides;
    let shared_pct = shared_pct(&changes);
    let medians = [before.durations.p50_ns, after.durations.p50_ns];
    let verdict = verdict::judge_change(&whole, medians, &parts, &changes, shared_pct);
    Diff { verdict, unit, shared_pct, before, after, parts, totals, changes }
}

/// Returns the share of operator time, or else of kernel time, that lies under names of both sides.
fn shared_pct(changes: &[SpentChange]) -> Option<f64> {
    let shared = |subject: DiffSubject| {
        let filter_subject = changes.iter().filter(|change| change.subject == subject);
        let ns = |change: &SpentChange| change.before_ns + change.after_ns;
        let both = filter_subject.clone().filter(|change| change.presence == Presence::Both);
        percent(both.map(ns).sum(), filter_subject.map(ns).sum())
    };
    shared(DiffSubject::Host).or_else(|| shared(DiffSubject::Kernel))
}

/// Returns the length of each unit, sorted by rank and time.
pub fn unit_lengths(job: &JobFacts<'_>, unit: DiffUnit) -> Vec<i64> {
    lengths(&unit::samples(&job.ranks, unit))
}

impl Diff {
    /// Returns the changes of one subject, largest change first.
    pub fn filter_subject(&self, subject: DiffSubject) -> impl Iterator<Item = &SpentChange> {
        self.changes.iter().filter(move |change| change.subject == subject)
    }
}

fn side(samples: &[RankUnits<'_>]) -> DiffSide {
    let mut lengths = lengths(samples);
    let spread = distribution::describe_values(&mut lengths);
    DiffSide {
        rank_count: samples.len() as u64,
        unit_count: spread.count,
        window_ns: samples.iter().map(|sample| sample.scope.window.length()).sum(),
        durations: spread.into(),
    }
}

/// Pairs the rows of both sides that have the same name and shape.
fn compare(subject: DiffSubject, spent: [Spent; 2], unit_ns: f64) -> Vec<SpentChange> {
    let [before, mut after] = spent;
    let mut pairs: Vec<_> = before
        .rows
        .into_iter()
        .map(|(key, row)| {
            let other = after.rows.remove(&key);
            (key, Some(row), other)
        })
        .collect();
    // Rows that are left on the second side have no counterpart on the first, so they were added.
    pairs.extend(after.rows.into_iter().map(|(key, row)| (key, None, Some(row))));
    let units = [before.units, after.units];
    let mut changes: Vec<SpentChange> = pairs
        .into_iter()
        .map(|((name, shape), before, after)| {
            let presence = match (&before, &after) {
                (Some(_), Some(_)) => Presence::Both,
                (None, _) => Presence::Added,
                (_, None) => Presence::Removed,
            };
            let [before, after] = [before, after].map(Option::unwrap_or_default);
            let counts = [before.count, after.count];
            let [before, after] =
                [(before.ns, units[0]), (after.ns, units[1])].map(|(ns, units)| filled(ns, units));
            let shift = Shift::new(&before, &after);
            let per_unit = |side: usize| {
                distribution::thousandths(counts[side] as f64 / units[side].max(1) as f64)
            };
            SpentChange {
                subject,
                name,
                shape,
                presence,
                before_count: counts[0],
                after_count: counts[1],
                before_per_unit: per_unit(0),
                after_per_unit: per_unit(1),
                before_ns: shift.before_ns,
                after_ns: shift.after_ns,
                delta_ns: shift.delta_ns,
                unit_pct: percent(shift.delta_ns, unit_ns.round() as i64),
                noise_ns: shift.noise_ns,
                is_noise: shift.is_noise,
            }
        })
        .collect();
    changes.sort_by(|a, b| {
        let size = |change: &SpentChange| {
            (change.delta_ns.abs(), change.before_count.abs_diff(change.after_count))
        };
        size(b).cmp(&size(a)).then_with(|| (&a.name, &a.shape).cmp(&(&b.name, &b.shape)))
    });
    changes
}

/// Extends the values to one per unit, with zero for the units in which no time was spent.
fn filled(mut ns: Vec<i64>, units: usize) -> Vec<i64> {
    ns.resize(units, 0);
    ns
}
