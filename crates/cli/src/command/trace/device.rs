//! Prints the tables about device work: breakdown, idle time, overlap, kernels, launches and
//! queues.

use std::cmp::Reverse;

use analyze::idle::{Idle, IdleSettings};
use analyze::job::{JobFacts, RankFacts};
use analyze::launches::GroupedBy;
use analyze::{breakdown, idle, kernels, launches, overlap, queue};

use super::query::{TraceQuery, rows_of_ranks};
use crate::args::{BreakdownBy, IdleBy, KernelsBy, LaunchesBy, QueueBy};
use setup::error::Error;
use setup::open_job::SelectedJob;

/// Prints the rows of `rowmill trace breakdown`.
pub fn breakdown(query: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(query.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => query
            .put(&rows_of_ranks(&job, |rank| [breakdown::compute_recorded_breakdown(rank.scope)])),
        BreakdownBy::Device => {
            query.put(&rows_of_ranks(&job, |rank| breakdown::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace idle`.
pub fn idle(query: &TraceQuery<'_>, by: IdleBy, kernel_wait_ns: i64) -> Result<(), Error> {
    let settings = IdleSettings { kernel_wait_ns, ..IdleSettings::USUAL };
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        IdleBy::Device => {
            query.put(&rows_of_ranks(&job, |rank| idle_rows(rank, &settings).devices))
        }
        IdleBy::Stream => {
            query.put(&rows_of_ranks(&job, |rank| idle_rows(rank, &settings).streams))
        }
        IdleBy::Gap => query.put(&rows_of_ranks(&job, |rank| idle_rows(rank, &settings).gaps)),
        IdleBy::Op => query.put(&rows_of_ranks(&job, |rank| idle_rows(rank, &settings).owners)),
    }
}

fn idle_rows<'a>(rank: &RankFacts<'a>, settings: &IdleSettings) -> Idle<'a> {
    idle::compute_idle_time(rank.scope, rank.tree(), settings)
}

/// Prints the rows of `rowmill trace overlap`.
pub fn overlap(query: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(query.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => {
            query.put(&rows_of_ranks(&job, |rank| overlap::compute_overlap(rank.scope)))
        }
        BreakdownBy::Device => {
            query.put(&rows_of_ranks(&job, |rank| overlap::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace kernels`.
pub fn kernels(query: &TraceQuery<'_>, by: KernelsBy) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        KernelsBy::Name => {
            let mut rows = rows_of_ranks(&job, |rank| kernels::list_kernels(rank.scope));
            kernels::distinguish(&mut rows);
            // The rows of each rank are sorted by time, but the ranks follow each other, so all
            // rows are sorted again.
            rows.sort_by_key(|row| Reverse(row.total_ns));
            query.put(&rows)
        }
        KernelsBy::Histogram => {
            query.put(&rows_of_ranks(&job, |rank| kernels::histograms(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace launches`.
pub fn launches(query: &TraceQuery<'_>, by: LaunchesBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(query.chosen.scopes());
    let job = JobFacts::new(&scopes);
    let distributions = |grouped_by| {
        let launch_rows = |rank: &RankFacts<'_>| {
            launches::distributions(&rank.launches().collect::<Vec<_>>(), grouped_by)
        };
        query.put(&rows_of_ranks(&job, launch_rows))
    };
    match by {
        LaunchesBy::Rank => {
            query.put(&rows_of_ranks(&job, |rank| [launches::summary(rank.scope, rank.launches())]))
        }
        LaunchesBy::Call => distributions(GroupedBy::Call),
        LaunchesBy::Kernel => distributions(GroupedBy::Work),
        LaunchesBy::Launch => query.put(&rows_of_ranks(&job, RankFacts::launches)),
    }
}

/// Prints the rows of `rowmill trace queue`.
pub fn queue(query: &TraceQuery<'_>, by: QueueBy) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        QueueBy::Stream => {
            query.put(&rows_of_ranks(&job, |rank| queue::measure_queues(rank.scope)))
        }
        QueueBy::Point => query.put(&rows_of_ranks(&job, |rank| queue::series(rank.scope))),
    }
}
