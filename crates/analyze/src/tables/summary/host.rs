//! Lists host time of recordings without a device: own time of operators, and time of threads.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::store::EventKind;

use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::facts::tree;
use crate::percent::percent;
use crate::tables::ops;

/// Operators of one name, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnTime {
    pub name: String,
    pub count: u64,
    /// Time of the operators without their children.
    pub own_ns: i64,
    /// Time of the operators including their children, where calls inside a call of the same name
    /// count only once.
    pub host_ns: i64,
    /// `own_ns` relative to all windows, in percent.
    pub window_pct: Option<f64>,
}

/// Operators of one thread of one rank, and the time in them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadTime {
    pub rank: u32,
    pub thread: String,
    /// Number of operators that start in the window, including those inside other operators.
    pub operator_count: u64,
    pub operator_ns: i64,
    /// Share of the rank's window, in percent.
    pub window_pct: Option<f64>,
}

/// Returns the operators with the most time of their own.
pub(super) fn own_times(ranks: &[RankFacts<'_>], top: usize) -> Vec<OwnTime> {
    let mut found: BTreeMap<String, OwnTime> = BTreeMap::new();
    for row in ranks
        .iter()
        .flat_map(|rank| ops::list_operators(rank.scope, rank.tree(), rank.attribution()))
    {
        let sums = found.entry(row.name.clone()).or_insert_with(|| OwnTime {
            name: row.name.clone(),
            count: 0,
            own_ns: 0,
            host_ns: 0,
            window_pct: None,
        });
        sums.count += row.count;
        sums.own_ns += row.host_self_ns;
        sums.host_ns += row.host_ns;
    }
    let window_ns: i64 = ranks.iter().map(|rank| rank.scope.window.length()).sum();
    let mut rows: Vec<OwnTime> = found.into_values().collect();
    rows.sort_by_key(|row| -row.own_ns);
    rows.truncate(top);
    rows.iter_mut().for_each(|row| row.window_pct = percent(row.own_ns, window_ns));
    rows
}

/// Returns the threads of all ranks, busiest thread first.
pub(super) fn threads(ranks: &[RankFacts<'_>]) -> Vec<ThreadTime> {
    let mut rows: Vec<ThreadTime> = ranks.iter().flat_map(list_thread_times).collect();
    rows.sort_by_key(|row| (-row.operator_ns, row.rank));
    rows
}

fn list_thread_times(rank: &RankFacts<'_>) -> Vec<ThreadTime> {
    let trace = rank.scope.trace;
    let thread_time = |thread: &tree::TreeThread| {
        let is_operator =
            |row: &&u32| trace.kind(**row) == EventKind::Operator && !tree::is_label(trace, **row);
        let rows: Vec<u32> =
            rank.tree().rows_of(thread).iter().filter(is_operator).copied().collect();
        let spans = rows.iter().map(|row| rank.scope.clipped(*row)).collect();
        let operator_ns = interval::length(&interval::union(spans));
        let track = &trace.tracks[thread.track.0 as usize];
        ThreadTime {
            rank: trace.rank,
            thread: format!("{}/{}", track.pid, track.tid),
            operator_count: rows.iter().filter(|row| rank.scope.starts_inside(**row)).count()
                as u64,
            operator_ns,
            window_pct: percent(operator_ns, rank.scope.window.length()),
        }
    };
    rank.tree().threads.iter().map(thread_time).collect()
}
