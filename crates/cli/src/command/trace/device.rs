//! Tables of device work: breakdown, idle time, overlap, kernels, launches, queues.

use std::cmp::Reverse;

use analyze::idle::IdleSettings;
use analyze::job::{JobFacts, RankFacts};
use analyze::launches::GroupedBy;
use analyze::{breakdown, idle, kernels, launches, overlap, queue};

use super::{TraceLook, each};
use crate::args::{BreakdownBy, IdleBy, KernelsBy, LaunchesBy, QueueBy};
use crate::error::Error;
use crate::resolve::trace::Chosen;

/// `rowmill trace breakdown`.
pub fn breakdown(look: &TraceLook<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = Chosen::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => {
            look.put(&each(&job, |rank| [breakdown::compute_recorded_breakdown(rank.scope)]))
        }
        BreakdownBy::Device => look.put(&each(&job, |rank| breakdown::by_device(rank.scope))),
    }
}

/// `rowmill trace idle`.
pub fn idle(look: &TraceLook<'_>, by: IdleBy, kernel_wait_ns: i64) -> Result<(), Error> {
    let settings = IdleSettings { kernel_wait_ns, ..IdleSettings::USUAL };
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let of = |rank: &RankFacts<'_>| idle::compute_idle_time(rank.scope, rank.tree(), &settings);
    match by {
        IdleBy::Device => look.put(&each(&job, |rank| of(rank).devices)),
        IdleBy::Stream => look.put(&each(&job, |rank| of(rank).streams)),
        IdleBy::Gap => look.put(&each(&job, |rank| of(rank).gaps)),
        IdleBy::Op => look.put(&each(&job, |rank| of(rank).owners)),
    }
}

/// `rowmill trace overlap`.
pub fn overlap(look: &TraceLook<'_>, by: BreakdownBy) -> Result<(), Error> {
    let scopes = Chosen::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    match by {
        BreakdownBy::Rank => look.put(&each(&job, |rank| overlap::compute_overlap(rank.scope))),
        BreakdownBy::Device => look.put(&each(&job, |rank| overlap::by_device(rank.scope))),
    }
}

/// `rowmill trace kernels`.
pub fn kernels(look: &TraceLook<'_>, by: KernelsBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        KernelsBy::Name => {
            let mut rows = each(&job, |rank| kernels::list_kernels(rank.scope));
            kernels::distinguish(&mut rows);
            // The longest of any rank first; of one rank they are in that order already.
            rows.sort_by_key(|row| Reverse(row.total_ns));
            look.put(&rows)
        }
        KernelsBy::Histogram => look.put(&each(&job, |rank| kernels::histograms(rank.scope))),
    }
}

/// `rowmill trace launches`.
pub fn launches(look: &TraceLook<'_>, by: LaunchesBy) -> Result<(), Error> {
    let scopes = Chosen::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    let distributions = |grouped_by| {
        let of_rank = |rank: &RankFacts<'_>| {
            let mut found = launches::distributions(rank.launches());
            found.retain(|one| one.grouped_by == grouped_by);
            found
        };
        look.put(&each(&job, of_rank))
    };
    match by {
        LaunchesBy::Rank => {
            look.put(&each(&job, |rank| [launches::summary(rank.scope, rank.launches())]))
        }
        LaunchesBy::Call => distributions(GroupedBy::Call),
        LaunchesBy::Kernel => distributions(GroupedBy::Work),
        LaunchesBy::Launch => look.put(&each(&job, RankFacts::launches)),
    }
}

/// `rowmill trace queue`.
pub fn queue(look: &TraceLook<'_>, by: QueueBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        QueueBy::Stream => look.put(&each(&job, |rank| queue::measure_queues(rank.scope))),
        QueueBy::Point => look.put(&each(&job, |rank| queue::series(rank.scope))),
    }
}
