//! Finds kernels that behave like collectives although their names do not show it, because the
//! ranks begin them at different times and end them together.

use std::collections::BTreeMap;

use super::issue::{Issue, IssueKind, Severity};
use crate::facts::classify::WorkClass;
use crate::facts::clock;
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::tables::kernels::short_name;

/// Minimum number of occurrences of a kernel, because fewer may end together by chance.
const COUNT_MIN: usize = 3;
/// Minimum spread of the start times over ranks, below which waiting cannot be distinguished from
/// jitter.
const SPREAD_NS: i64 = 50_000;
/// Minimum ratio of the spread of the start times to the spread of the end times.
const CLOSER: i64 = 10;
/// Minimum share of the occurrences that behave like a collective, in percent.
const SHARE_PCT: usize = 80;
/// Maximum number of kernel names in the message.
const SHOWN: usize = 3;

/// The times of the kernels of one name, with one list per rank.
type ByRank = Vec<Vec<Interval>>;

pub(super) fn issue(ranks: &[RankFacts<'_>]) -> Option<Issue> {
    if ranks.len() < 2 {
        return None;
    }
    let mut by_name: BTreeMap<&str, ByRank> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        let scope = rank.scope;
        let rows = scope.device_rows.iter().zip(&scope.classes);
        // Work that is already classified as communication or memory needs no such suspicion.
        for (row, _) in rows.filter(|(_, class)| **class == WorkClass::Compute) {
            let spans =
                by_name.entry(rank.name(*row)).or_insert_with(|| vec![Vec::new(); ranks.len()]);
            spans[at].push((rank.start(*row), rank.end(*row)));
        }
    }
    let found: Vec<(&str, &ByRank)> = by_name
        .iter()
        .map(|(name, spans)| (*name, spans))
        .filter(|(_, s)| ends_together(s))
        .collect();
    let count: usize = found.iter().map(|(_, spans)| spans[0].len()).sum();
    let names: Vec<String> =
        found.iter().take(SHOWN).map(|(name, _)| short_name(name).to_owned()).collect();
    let kind = IssueKind {
        id: "candidate-communication",
        severity: Severity::Warning,
        matters: "if these kernels exchange data, communication, compute and stragglers are wrong",
        hint: "if they do, say so: --class communication=NAME",
    };
    let what = format!(
        "the ranks begin {} at different times and end it together, as collectives do; it counts as \
         compute",
        names.join(", ")
    );
    (!found.is_empty()).then(|| kind.issue(None, count as u64, what))
}

/// Returns whether all ranks run the kernel equally often and end it together, but do not begin it
/// together.
fn ends_together(spans: &ByRank) -> bool {
    let count = spans[0].len();
    if count < COUNT_MIN || spans.iter().any(|of_rank| of_rank.len() != count) {
        return false;
    }
    let at = |occurrence: usize| spans.iter().map(move |of_rank| of_rank[occurrence]);
    let numbers: Vec<u32> = (0..spans.len() as u32).collect();
    let ends: Vec<Vec<Option<i64>>> =
        (0..count).map(|occurrence| at(occurrence).map(|(_, end)| Some(end)).collect()).collect();
    let clocks = clock::skew(&ends, &numbers);
    let spread = |times: &dyn Fn(Interval) -> i64, occurrence: usize| {
        let times = at(occurrence).zip(&clocks).map(|(span, clock)| times(span) - clock.ahead_ns);
        let (least, most) = times.fold((i64::MAX, i64::MIN), |(a, b), t| (a.min(t), b.max(t)));
        most - least
    };
    let is_shown = |occurrence: &usize| {
        let begins = spread(&|(start, _)| start, *occurrence);
        begins >= SPREAD_NS && CLOSER * spread(&|(_, end)| end, *occurrence) <= begins
    };
    100 * (0..count).filter(is_shown).count() >= SHARE_PCT * count
}
