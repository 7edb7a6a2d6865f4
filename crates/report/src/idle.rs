//! Why devices do nothing: causes, owners and the longest gaps.

use std::cmp::Reverse;

use analyze::JobFacts;
use analyze::idle::{DeviceCause, DeviceIdle, IdleOwner};
use serde::Serialize;

use crate::clock::Zero;

/// How many of the longest gaps are listed, over all ranks.
const GAPS: usize = 200;

/// Idle time of all devices.
#[derive(Clone, Debug, Serialize)]
pub struct IdlePart {
    /// By rank, device and cause; a device's rows sum to its idle time.
    pub causes: Vec<DeviceIdle>,
    /// Who owns most of it, by rank and device.
    pub owners: Vec<IdleOwner>,
    /// The longest gaps, the longest first.
    pub gaps: Vec<GapView>,
    /// How many gaps there are.
    pub gap_count: u64,
}

/// A stretch in which a device does nothing.
#[derive(Clone, Debug, Serialize)]
pub struct GapView {
    pub rank: u32,
    pub device: i32,
    /// Start on the page's clock.
    pub at_ns: i64,
    pub idle_ns: i64,
    /// The cause of most of it.
    pub cause: DeviceCause,
    /// Who owns most of that part.
    pub owner: Option<String>,
    pub ended_by: Option<String>,
}

pub(crate) fn of(job: &JobFacts<'_>, zero: &Zero) -> IdlePart {
    let mut part =
        IdlePart { causes: Vec::new(), owners: Vec::new(), gaps: Vec::new(), gap_count: 0 };
    for rank in &job.ranks {
        let found = rank.idle();
        part.causes.extend(found.devices.iter().cloned());
        part.owners.extend(found.owners.iter().cloned());
        part.gap_count += found.gaps.len() as u64;
        part.gaps.extend(found.gaps.iter().map(|gap| GapView {
            rank: gap.rank,
            device: gap.device,
            at_ns: zero.at(gap.rank, gap.start_ns),
            idle_ns: gap.idle_ns,
            cause: gap.cause,
            owner: gap.owner.clone(),
            ended_by: gap.ending_row.map(|row| rank.scope.trace.name(row).to_owned()),
        }));
    }
    part.gaps.sort_by_key(|gap| (Reverse(gap.idle_ns), gap.rank, gap.at_ns));
    part.gaps.truncate(GAPS);
    part
}
