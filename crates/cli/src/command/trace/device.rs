//! Tables of device work: breakdown, idle time, overlap, kernels, launches, queues.

use std::cmp::Reverse;

use analyze::hta::{self, Cutoffs, View};
use analyze::idle::IdleSettings;
use analyze::job::{JobFacts, RankFacts};
use analyze::launches::GroupedBy;
use analyze::{breakdown, idle, kernels, launches, overlap, queue};
use serde::Serialize;

use super::query::{TraceQuery, rows_of_ranks};
use crate::args::{BreakdownBy, IdleBy, KernelsBy, LaunchesBy, QueueBy};
use setup::error::Error;
use setup::open_job::SelectedJob;

/// Prints the rows of `rowmill trace breakdown`.
pub fn breakdown(look: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::Temporal, hta::HtaTable::Overlap]);
        return look.put(&hta_breakdown(&look.views()));
    }
    let scopes = SelectedJob::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => {
            look.put(&rows_of_ranks(&job, |rank| [breakdown::of_recording(rank.scope)]))
        }
        BreakdownBy::Device => {
            look.put(&rows_of_ranks(&job, |rank| breakdown::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace idle`.
pub fn idle(look: &TraceQuery<'_>, by: IdleBy, kernel_wait_ns: i64) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::Idle]);
        return look.put(&hta::idle(&look.views(), kernel_wait_ns));
    }
    let settings = IdleSettings { kernel_wait_ns, ..IdleSettings::USUAL };
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let idle_rows = |rank: &RankFacts<'_>| idle::of(rank.scope, rank.tree(), &settings);
    match by {
        IdleBy::Device => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).devices)),
        IdleBy::Stream => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).streams)),
        IdleBy::Gap => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).gaps)),
        IdleBy::Op => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).owners)),
    }
}

/// Prints the rows of `rowmill trace overlap`.
pub fn overlap(look: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::KernelTypes]);
        return look.put(&hta::kernel_types(&look.views()));
    }
    let scopes = SelectedJob::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => look.put(&rows_of_ranks(&job, |rank| overlap::of(rank.scope))),
        BreakdownBy::Device => {
            look.put(&rows_of_ranks(&job, |rank| overlap::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace kernels`.
pub fn kernels(look: &TraceQuery<'_>, by: KernelsBy) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::Kernels]);
        return look.put(&hta::kernels(&look.views()));
    }
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        KernelsBy::Name => {
            let mut rows = rows_of_ranks(&job, |rank| kernels::of(rank.scope));
            kernels::distinguish(&mut rows);
            // The longest of any rank first; of one rank they are in that order already.
            rows.sort_by_key(|row| Reverse(row.total_ns));
            look.put(&rows)
        }
        KernelsBy::Histogram => {
            look.put(&rows_of_ranks(&job, |rank| kernels::histograms(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace launches`.
pub fn launches(look: &TraceQuery<'_>, by: LaunchesBy) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::Launches]);
        let rows = hta::launches(&look.views());
        return match by {
            LaunchesBy::Launch => look.put(&rows),
            _ => look.put(&hta::launch_summary(&rows, Cutoffs::HTA)),
        };
    }
    let scopes = SelectedJob::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    let distributions = |grouped_by| {
        let launch_rows = |rank: &RankFacts<'_>| {
            let mut found = launches::distributions(rank.launches());
            found.retain(|one| one.grouped_by == grouped_by);
            found
        };
        look.put(&rows_of_ranks(&job, launch_rows))
    };
    match by {
        LaunchesBy::Rank => {
            look.put(&rows_of_ranks(&job, |rank| [launches::summary(rank.scope, rank.launches())]))
        }
        LaunchesBy::Call => distributions(GroupedBy::Call),
        LaunchesBy::Kernel => distributions(GroupedBy::Work),
        LaunchesBy::Launch => look.put(&rows_of_ranks(&job, RankFacts::launches)),
    }
}

/// Prints the rows of `rowmill trace queue`.
pub fn queue(look: &TraceQuery<'_>, by: QueueBy) -> Result<(), Error> {
    if look.chosen.is_hta {
        look.explain(&[hta::HtaTable::Queue]);
        return look.put(&hta::queue(&look.views()));
    }
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        QueueBy::Stream => look.put(&rows_of_ranks(&job, |rank| queue::of(rank.scope))),
        QueueBy::Point => look.put(&rows_of_ranks(&job, |rank| queue::series(rank.scope))),
    }
}

/// A rank's breakdown as Holistic Trace Analysis prints it in two tables.
#[derive(Serialize)]
struct HtaBreakdown {
    #[serde(flatten)]
    temporal: hta::Temporal,
    communication_ns: i64,
    overlap_ns: i64,
    overlap_pct: Option<f64>,
}

fn hta_breakdown(views: &[View<'_>]) -> Vec<HtaBreakdown> {
    let overlaps = hta::overlap(views);
    let with_overlap = |temporal: hta::Temporal| {
        let overlap = overlaps.iter().find(|overlap| overlap.rank == temporal.rank);
        HtaBreakdown {
            temporal,
            communication_ns: overlap.map_or(0, |overlap| overlap.communication_ns),
            overlap_ns: overlap.map_or(0, |overlap| overlap.overlap_ns),
            overlap_pct: overlap.and_then(|overlap| overlap.overlap_pct),
        }
    };
    hta::temporal(views).into_iter().map(with_overlap).collect()
}

impl TraceQuery<'_> {
    fn views(&self) -> Vec<View<'_>> {
        hta::views(self.chosen.job.traces.iter().filter(|trace| trace.is_usable()))
    }

    /// Why figures of Holistic Trace Analysis are not ours, with `-v`.
    fn explain(&self, tables: &[hta::HtaTable]) {
        let mut said = Vec::new();
        for difference in hta::explain(&self.views()) {
            let is_new = !said.contains(&difference.hta);
            if tables.contains(&difference.table) && difference.row_count != Some(0) && is_new {
                said.push(difference.hta);
                let rows = difference.row_count.map_or(String::new(), |n| format!(" ({n} rows)"));
                self.session.console.detail(format_args!(
                    "Holistic Trace Analysis {}{rows}; rowmill {}",
                    difference.hta, difference.rowmill
                ));
            }
        }
    }
}
