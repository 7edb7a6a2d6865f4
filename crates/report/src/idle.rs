//! The idle tab of the page: causes and owners of idle device time, and the longest gaps.

use std::cmp::Reverse;

use analyze::JobFacts;
use analyze::idle::{DeviceCause, DeviceIdle, Gap, IdleOwner};
use analyze::job::RankFacts;
use serde::Serialize;

use crate::clock::Zero;

/// Maximum number of listed gaps over all ranks.
const GAPS: usize = 200;

/// Idle time of all devices, by cause and owner.
#[derive(Clone, Debug, Serialize)]
pub struct IdlePart {
    /// Idle time by rank, device and cause. The rows of one device sum to its idle time.
    pub causes: Vec<DeviceIdle>,
    /// Owners with the most idle time, by rank and device.
    pub owners: Vec<IdleOwner>,
    pub gaps: Vec<GapView>,
    pub gap_count: u64,
}

/// A period in which a device is idle.
#[derive(Clone, Debug, Serialize)]
pub struct GapView {
    pub rank: u32,
    pub device: i32,
    /// Start of the gap on the page's clock.
    pub at_ns: i64,
    pub idle_ns: i64,
    /// The cause with the largest share of the gap.
    pub cause: DeviceCause,
    /// The owner with the largest share of that cause.
    pub owner: Option<String>,
    pub ended_by: Option<String>,
}

pub(crate) fn build_part(job: &JobFacts<'_>, zero: &Zero) -> IdlePart {
    let mut part =
        IdlePart { causes: Vec::new(), owners: Vec::new(), gaps: Vec::new(), gap_count: 0 };
    let mut longest = Vec::new();
    for rank in &job.ranks {
        let found = rank.idle();
        part.causes.extend(found.devices.iter().cloned());
        part.owners.extend(found.owners.iter().cloned());
        part.gap_count += found.gaps.len() as u64;
        longest.extend(found.gaps.iter().map(|gap| (rank, gap)));
    }
    longest
        .sort_by_key(|(_, gap)| (Reverse(gap.idle_ns), gap.rank, zero.at(gap.rank, gap.start_ns)));
    let view = |(rank, gap): (&RankFacts<'_>, &Gap<'_>)| GapView {
        rank: gap.rank,
        device: gap.device,
        at_ns: zero.at(gap.rank, gap.start_ns),
        idle_ns: gap.idle_ns,
        cause: gap.cause,
        owner: gap.owner.map(str::to_owned),
        ended_by: gap.ending_row.map(|row| rank.scope.trace.name(row).to_owned()),
    };
    part.gaps = longest.into_iter().take(GAPS).map(view).collect();
    part
}
