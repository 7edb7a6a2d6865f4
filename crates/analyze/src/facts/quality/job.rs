//! Reports whether the traces of several ranks belong together.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::Loss;

use super::issue::{Issue, IssueKind, Severity};
use crate::facts::clock;
use crate::facts::job::RankFacts;

pub(super) fn issues(ranks: &[RankFacts<'_>]) -> Vec<Issue> {
    let each = [
        duplicates(ranks),
        identical(ranks),
        mixed_jobs(ranks),
        too_many(ranks),
        missing(ranks),
        mixed_steps(ranks),
        apart(ranks),
    ];
    each.into_iter().flatten().collect()
}

fn listed<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    const SHOWN: usize = 8;
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    let rest = if values.len() > SHOWN { ", …" } else { "" };
    format!("{}{rest}", values[..values.len().min(SHOWN)].join(", "))
}

/// Counts the traces whose files name no rank, or name the rank of another file.
fn conflicts(ranks: &[RankFacts<'_>]) -> u64 {
    let conflict_count =
        |rank: &RankFacts<'_>| rank.scope.trace.losses.count_of(Loss::RankConflict);
    ranks.iter().map(conflict_count).sum()
}

/// Returns whether the recordings of the ranks do not overlap in time.
fn are_apart(ranks: &[RankFacts<'_>]) -> bool {
    clock::are_apart(ranks.iter().map(|rank| &rank.scope.window))
}

fn duplicates(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for rank in ranks {
        *counts.entry(rank.scope.trace.rank).or_default() += 1;
    }
    let conflicts = conflicts(ranks);
    let twice = counts.values().filter(|count| **count > 1).count() as u64;
    if twice + conflicts == 0 {
        return None;
    }
    let kind = IssueKind {
        id: "duplicate-ranks",
        severity: Severity::Warning,
        matters: "collectives are matched between the wrong ranks",
        hint: "give one file per rank, or name the files by rank, such as rank-3.json",
    };
    let what = match twice {
        0 => "files claim the same rank, or none; they were numbered by name".to_owned(),
        _ => {
            let twice = counts.iter().filter(|(_, count)| **count > 1).map(|(rank, _)| rank);
            format!("several traces claim rank {}", listed(twice))
        }
    };
    Some(kind.issue(None, twice.max(conflicts), what))
}

/// Reports recordings of different ranks whose rows have the same start times and durations,
/// because then one file was copied.
fn identical(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    let mut seen: BTreeMap<(usize, i64, i64), Vec<&RankFacts<'_>>> = BTreeMap::new();
    let mut copies = Vec::new();
    for rank in ranks.iter().filter(|rank| !rank.scope.trace.slices.is_empty()) {
        let slices = &rank.scope.trace.slices;
        let last = slices.len() as u32 - 1;
        // Comparing all rows with all other ranks would be slow, so only traces of equal length,
        // first start and last start are compared in full.
        let alike = seen.entry((slices.len(), slices.start(0), slices.start(last))).or_default();
        let is_same = |other: &&&RankFacts<'_>| {
            let other = &other.scope.trace.slices;
            let has_same_start = |row: u32| slices.start(row) == other.start(row);
            slices.duration == other.duration && (0..=last).all(has_same_start)
        };
        copies.extend(alike.iter().find(is_same).map(|first| (first.rank(), rank.rank())));
        alike.push(rank);
    }
    let kind = IssueKind {
        id: "identical-ranks",
        severity: Severity::Error,
        matters: "one rank counts several times, and waits between its copies are not real",
        hint: "give each rank's own file once",
    };
    let (first, copy) = copies.first()?;
    let others = if copies.len() > 1 { ", and others" } else { "" };
    let what =
        format!("rank {copy} has the same rows as rank {first}{others}: one file was copied");
    Some(kind.issue(None, copies.len() as u64, what))
}

/// Reports that there are more ranks than the world size that the recordings state.
fn too_many(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    let size = world_sizes(ranks).last().copied()?;
    let there: BTreeSet<u32> = ranks.iter().map(|rank| rank.scope.trace.rank).collect();
    let more = (there.len() as u32).saturating_sub(size);
    let kind = IssueKind {
        id: "more-ranks-than-world",
        severity: Severity::Error,
        matters: "collectives are matched between recordings that do not belong together",
        hint: "give one file per rank of one job",
    };
    let what = || format!("{} ranks are there, of a job of {size}", there.len());
    (more > 0).then(|| kind.issue(None, u64::from(more), what()))
}

/// Returns the world sizes that the files state.
fn world_sizes(ranks: &[RankFacts<'_>]) -> BTreeSet<u32> {
    let size = |rank: &RankFacts<'_>| rank.scope.trace.header.distributed.as_ref()?.world_size;
    ranks.iter().filter_map(size).collect()
}

/// Reports recordings of several jobs, recognized by different world sizes or by the same rank at
/// times that do not overlap.
fn mixed_jobs(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    let sizes = world_sizes(ranks);
    let kind = IssueKind {
        id: "mixed-jobs",
        severity: Severity::Error,
        matters: "traces of different jobs cannot be compared in time nor their collectives matched",
        hint: "give the traces of one job",
    };
    if sizes.len() > 1 {
        let what = format!("the traces name worlds of {} ranks", listed(&sizes));
        return Some(kind.issue(None, sizes.len() as u64, what));
    }
    let conflicts = conflicts(ranks);
    let what = "the traces are of different jobs, or of one job at different times: they name the \
                same rank, or none, and do not overlap in time";
    (conflicts > 0 && are_apart(ranks)).then(|| kind.issue(None, conflicts + 1, what.to_owned()))
}

fn missing(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    if mixed_jobs(ranks).is_some() {
        // Different jobs number their ranks independently, so missing ranks mean nothing.
        return None;
    }
    let size = world_sizes(ranks).last().copied()?;
    let there: BTreeSet<u32> = ranks.iter().map(|rank| rank.scope.trace.rank).collect();
    let absent = size.saturating_sub(there.len() as u32);
    if absent == 0 {
        return None;
    }
    // A user may record one rank on purpose, but some of several ranks may mean that a copy lost
    // files.
    let severity = if there.len() > 1 { Severity::Warning } else { Severity::Info };
    let kind = IssueKind {
        id: "missing-ranks",
        severity,
        matters: "waits for missing ranks cannot be distinguished from transfers; the straggler may be missing",
        hint: "give the traces of all ranks",
    };
    let what = format!("{} of {size} ranks are there", there.len());
    Some(kind.issue(None, u64::from(absent), what))
}

fn mixed_steps(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    if mixed_jobs(ranks).is_some() {
        // Equal step numbers in different jobs are unrelated.
        return None;
    }
    let numbers = |rank: &RankFacts<'_>| -> BTreeSet<i64> {
        rank.scope.steps.iter().map(|step| step.number).collect()
    };
    let whole = || ranks.iter().filter(|rank| rank.scope.trace.cut.is_none());
    let sets: Vec<(u32, BTreeSet<i64>)> =
        whole().map(|rank| (rank.scope.trace.rank, numbers(rank))).collect();
    let (_, first) = sets.first()?;
    let other = sets.iter().filter(|(_, numbers)| numbers != first);
    let other: Vec<u32> = other.map(|(rank, _)| *rank).collect();
    let kind = IssueKind {
        id: "mixed-steps",
        severity: Severity::Warning,
        matters: "collectives are matched by order, which pairs collectives of different steps",
        hint: "profile the same steps on all ranks",
    };
    let what = || format!("ranks {} recorded other steps than rank {}", listed(&other), sets[0].0);
    (!other.is_empty()).then(|| kind.issue(None, other.len() as u64, what()))
}

fn apart(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    let kind = IssueKind {
        id: "ranks-apart",
        severity: Severity::Warning,
        matters: "arrivals and waits of collectives show differences between clocks, not between ranks",
        hint: "profile all ranks at the same time; synchronize the hosts' clocks",
    };
    let what = || "the recordings of some ranks do not overlap in time".to_owned();
    are_apart(ranks).then(|| kind.issue(None, ranks.len() as u64, what()))
}
