//! Lists the device work and the operators that take the most time over all ranks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::facts::classify::WorkClass;
use crate::facts::job::RankFacts;
use crate::percent::percent;
use crate::tables::kernels::{self, KernelRow};

/// Device work of one name, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopKernel {
    /// Name without types and arguments, followed by what distinguishes it from other kernels with
    /// the same short name.
    pub name: String,
    pub class: WorkClass,
    /// Number of occurrences on all ranks.
    pub count: u64,
    /// Total duration on all ranks.
    pub total_ns: i64,
    /// Share of the busy time of all ranks, in percent.
    pub busy_pct: Option<f64>,
    /// The rank with the largest part of the time.
    pub rank_max: u32,
    pub rank_max_ns: i64,
}

/// Outermost operators of one name, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopOperator {
    pub name: String,
    /// Number of occurrences on all ranks.
    pub count: u64,
    /// Total host time on all ranks.
    pub host_ns: i64,
    /// Number of pieces of device work launched inside the operators.
    pub kernel_count: u64,
    pub device_ns: i64,
    /// Share of the busy time of all ranks, in percent.
    pub busy_pct: Option<f64>,
}

pub(super) fn kernels(ranks: &[RankFacts<'_>], busy_ns: i64, top: usize) -> Vec<TopKernel> {
    let mut found: BTreeMap<(String, WorkClass), BTreeMap<u32, (u64, i64)>> = BTreeMap::new();
    let mut rows: Vec<KernelRow> =
        ranks.iter().flat_map(|rank| kernels::list_kernels(rank.scope)).collect();
    kernels::distinguish(&mut rows);
    for row in rows {
        let by_rank = found.entry((row.short_name, row.class)).or_default();
        let sums = by_rank.entry(row.rank).or_default();
        sums.0 += row.count;
        sums.1 += row.total_ns;
    }
    let row = |((name, class), by_rank): ((String, WorkClass), BTreeMap<u32, (u64, i64)>)| {
        let most = by_rank.iter().rev().max_by_key(|(_, (_, ns))| *ns);
        let (rank_max, rank_max_ns) = most.map_or((0, 0), |(rank, (_, ns))| (*rank, *ns));
        let total_ns = by_rank.values().map(|(_, ns)| ns).sum();
        TopKernel {
            name,
            class,
            count: by_rank.values().map(|(count, _)| count).sum(),
            total_ns,
            busy_pct: percent(total_ns.min(busy_ns), busy_ns),
            rank_max,
            rank_max_ns,
        }
    };
    let mut rows: Vec<TopKernel> = found.into_iter().map(row).collect();
    rows.sort_by_key(|row| -row.total_ns);
    rows.truncate(top);
    rows
}

pub(super) fn operators(ranks: &[RankFacts<'_>], busy_ns: i64, top: usize) -> Vec<TopOperator> {
    let mut found: BTreeMap<&str, TopOperator> = BTreeMap::new();
    for rank in ranks {
        for (name, of_rank) in operators_of(rank) {
            let sums = found.entry(name).or_insert_with(|| TopOperator::new(name));
            sums.count += of_rank.count;
            sums.host_ns += of_rank.host_ns;
            sums.kernel_count += of_rank.kernel_count;
            sums.device_ns += of_rank.device_ns;
        }
    }
    let mut rows: Vec<TopOperator> = found.into_values().collect();
    rows.sort_by_key(|row| (-row.device_ns, -row.host_ns));
    rows.truncate(top);
    for row in &mut rows {
        row.busy_pct = percent(row.device_ns.min(busy_ns), busy_ns);
    }
    rows
}

/// Returns the outermost operators of one rank, by name.
fn operators_of<'a>(rank: &RankFacts<'a>) -> Vec<(&'a str, TopOperator)> {
    let trace = rank.scope.trace;
    let mut place = vec![u32::MAX; trace.strings.len()];
    let mut found: Vec<(&str, TopOperator)> = Vec::new();
    for row in rank.tree().top_operators(trace) {
        if !rank.scope.starts_inside(row) {
            continue;
        }
        let at = &mut place[trace.slices.name[row as usize].0 as usize];
        if *at == u32::MAX {
            *at = found.len() as u32;
            found.push((trace.name(row), TopOperator::new("")));
        }
        let inside = rank.attribution().inclusive(rank.tree(), row);
        let sums = &mut found[*at as usize].1;
        sums.count += 1;
        sums.host_ns += trace.slices.duration[row as usize];
        sums.kernel_count += inside.count;
        sums.device_ns += inside.device_ns;
    }
    found
}

impl TopOperator {
    fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self { name, count: 0, host_ns: 0, kernel_count: 0, device_ns: 0, busy_pct: None }
    }
}
