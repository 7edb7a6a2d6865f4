//! What the hosts do: operators by name over all ranks, annotations, calls of the runtime.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use analyze::JobFacts;
use analyze::annotations::{self, AnnotationRow};
use analyze::distribution::Durations;
use analyze::launches::{self, GroupedBy, LaunchDistribution, LaunchSummary};
use analyze::ops::{self, OpRow};
use serde::Serialize;

/// Names that are listed, those with most host and device time of their own.
const NAMES: usize = 150;
/// Annotations that are listed of one rank.
const ANNOTATIONS: usize = 30;

/// What the hosts do.
#[derive(Clone, Debug, Serialize)]
pub struct HostPart {
    /// By name, most host time of their own first.
    pub operators: Vec<OperatorView>,
    /// Names that are not listed.
    pub left_out_names: u64,
    /// By rank, most host time first.
    pub annotations: Vec<AnnotationRow>,
    /// Calls that launch work, and the delays behind them, by rank.
    pub calls: Vec<LaunchDistribution>,
    /// The launches of each rank.
    pub launches: Vec<LaunchSummary>,
}

/// Operators of one name; times of all ranks.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorView {
    pub name: String,
    pub count: u64,
    /// On the host, with what they called.
    pub host_ns: i64,
    /// On the host, without.
    pub host_self_ns: i64,
    /// Device work launched inside.
    pub device_ns: i64,
    /// Device work they launched themselves.
    pub device_self_ns: i64,
    /// Pieces of device work launched inside.
    pub kernel_count: u64,
    /// One per rank that has it, by rank.
    pub ranks: Vec<OperatorOfRank>,
}

/// The same on one rank; see [`OpRow`].
#[derive(Clone, Debug, Serialize)]
pub struct OperatorOfRank {
    pub rank: u32,
    pub count: u64,
    /// On the host, with what they called.
    pub host_ns: i64,
    /// On the host, without.
    pub host_self_ns: i64,
    /// Device work launched inside.
    pub device_ns: i64,
    /// Device work they launched themselves.
    pub device_self_ns: i64,
    /// Of one call on the host.
    #[serde(flatten)]
    pub durations: Durations,
}

pub(crate) fn of(job: &JobFacts<'_>) -> HostPart {
    let mut found: BTreeMap<String, OperatorView> = BTreeMap::new();
    let (mut annotated, mut calls, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for rank in &job.ranks {
        for row in ops::list_operators(rank.scope, rank.tree(), rank.attribution()) {
            let name = row.name.clone();
            found.entry(name).or_insert_with(|| OperatorView::new(&row)).add(&row);
        }
        let mut of_rank =
            annotations::list_annotations(rank.scope, rank.tree(), rank.attribution());
        of_rank.truncate(ANNOTATIONS);
        annotated.extend(of_rank);
        let rows = rank.launches();
        let by_call = launches::distributions(rows).into_iter();
        calls.extend(by_call.filter(|one| one.grouped_by == GroupedBy::Call));
        sums.push(launches::summary(rank.scope, rows));
    }
    let mut operators: Vec<OperatorView> = found.into_values().collect();
    operators.sort_by_key(|view| Reverse(view.host_self_ns + view.device_self_ns));
    let left_out_names = operators.len().saturating_sub(NAMES) as u64;
    operators.truncate(NAMES);
    operators.sort_by_key(|view| Reverse(view.host_self_ns));
    HostPart { operators, left_out_names, annotations: annotated, calls, launches: sums }
}

impl OperatorView {
    fn new(row: &OpRow) -> Self {
        Self {
            name: row.name.clone(),
            count: 0,
            host_ns: 0,
            host_self_ns: 0,
            device_ns: 0,
            device_self_ns: 0,
            kernel_count: 0,
            ranks: Vec::new(),
        }
    }

    fn add(&mut self, row: &OpRow) {
        self.count += row.count;
        self.host_ns += row.host_ns;
        self.host_self_ns += row.host_self_ns;
        self.device_ns += row.device_ns;
        self.device_self_ns += row.device_self_ns;
        self.kernel_count += row.kernel_count;
        self.ranks.push(OperatorOfRank {
            rank: row.rank,
            count: row.count,
            host_ns: row.host_ns,
            host_self_ns: row.host_self_ns,
            device_ns: row.device_ns,
            device_self_ns: row.device_self_ns,
            durations: row.durations,
        });
    }
}
