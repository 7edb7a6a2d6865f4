//! Tables of device work: breakdown, idle time, overlap, kernels, launches, queues.

use std::cmp::Reverse;

use analyze::idle::IdleSettings;
use analyze::job::{JobFacts, RankFacts};
use analyze::launches::GroupedBy;
use analyze::{breakdown, idle, kernels, launches, overlap, queue};

use super::query::{TraceQuery, rows_of_ranks};
use crate::args::{BreakdownBy, IdleBy, KernelsBy, LaunchesBy, QueueBy};
use setup::error::Error;
use setup::open_job::SelectedJob;

/// Prints the rows of `rowmill trace breakdown`.
pub fn breakdown(look: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => look
            .put(&rows_of_ranks(&job, |rank| [breakdown::compute_recorded_breakdown(rank.scope)])),
        BreakdownBy::Device => {
            look.put(&rows_of_ranks(&job, |rank| breakdown::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace idle`.
pub fn idle(look: &TraceQuery<'_>, by: IdleBy, kernel_wait_ns: i64) -> Result<(), Error> {
    let settings = IdleSettings { kernel_wait_ns, ..IdleSettings::USUAL };
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let idle_rows =
        |rank: &RankFacts<'_>| idle::compute_idle_time(rank.scope, rank.tree(), &settings);
    match by {
        IdleBy::Device => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).devices)),
        IdleBy::Stream => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).streams)),
        IdleBy::Gap => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).gaps)),
        IdleBy::Op => look.put(&rows_of_ranks(&job, |rank| idle_rows(rank).owners)),
    }
}

/// Prints the rows of `rowmill trace overlap`.
pub fn overlap(look: &TraceQuery<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => {
            look.put(&rows_of_ranks(&job, |rank| overlap::compute_overlap(rank.scope)))
        }
        BreakdownBy::Device => {
            look.put(&rows_of_ranks(&job, |rank| overlap::by_device(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace kernels`.
pub fn kernels(look: &TraceQuery<'_>, by: KernelsBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        KernelsBy::Name => {
            let mut rows = rows_of_ranks(&job, |rank| kernels::list_kernels(rank.scope));
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
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        QueueBy::Stream => look.put(&rows_of_ranks(&job, |rank| queue::measure_queues(rank.scope))),
        QueueBy::Point => look.put(&rows_of_ranks(&job, |rank| queue::series(rank.scope))),
    }
}
