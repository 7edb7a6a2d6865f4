//! The host tab of the page: operators by name over all ranks, annotations, and runtime calls.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use analyze::JobFacts;
use analyze::annotations::{self, AnnotationRow};
use analyze::distribution::Durations;
use analyze::launches::{self, GroupedBy, LaunchDistribution, LaunchSummary};
use analyze::ops::{self, OpRow};
use serde::Serialize;

/// Maximum number of listed operator names. Those with the most self time on host and device are
/// listed.
const NAMES: usize = 150;
/// Maximum number of listed annotations per rank.
const ANNOTATIONS: usize = 30;

/// Operators, annotations and launches on the hosts of all ranks.
#[derive(Clone, Debug, Serialize)]
pub struct HostPart {
    /// Operators by name, sorted by descending self time on the host.
    pub operators: Vec<OperatorView>,
    pub left_out_names: u64,
    /// Annotations by rank, sorted by descending host time.
    pub annotations: Vec<AnnotationRow>,
    /// Runtime calls that launch work, with the distribution of their launch delays, by rank.
    pub calls: Vec<LaunchDistribution>,
    /// Launch summaries, one for each rank.
    pub launches: Vec<LaunchSummary>,
}

/// Operators of one name, summed over all ranks.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorView {
    pub name: String,
    pub count: u64,
    /// Host time including the time of called operators.
    pub host_ns: i64,
    /// Host time excluding the time of called operators.
    pub host_self_ns: i64,
    /// Time of device work that the operators or operators called by them launched.
    pub device_ns: i64,
    /// Time of device work that the operators launched directly.
    pub device_self_ns: i64,
    /// Number of device rows that the operators or operators called by them launched.
    pub kernel_count: u64,
    /// Ranks that ran such operators, in ascending order.
    pub ranks: Vec<OperatorOfRank>,
}

/// The part of an [`OpRow`] that ran on one rank.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorOfRank {
    pub rank: u32,
    pub count: u64,
    /// Host time including the time of called operators.
    pub host_ns: i64,
    /// Host time excluding the time of called operators.
    pub host_self_ns: i64,
    /// Time of device work that the operators or operators called by them launched.
    pub device_ns: i64,
    /// Time of device work that the operators launched directly.
    pub device_self_ns: i64,
    /// Distribution of the host time of a single call.
    #[serde(flatten)]
    pub durations: Durations,
}

pub(crate) fn build_part(job: &JobFacts<'_>) -> HostPart {
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
        let rows: Vec<_> = rank.launches().collect();
        calls.extend(launches::distributions(&rows, GroupedBy::Call));
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
