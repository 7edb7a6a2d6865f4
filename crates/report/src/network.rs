//! The network tab of the page: collectives with arrival, wait and transfer of each rank, and
//! stragglers.

use std::cmp::Reverse;

use analyze::JobFacts;
use analyze::clock::RankClock;
use analyze::collectives::{CollectiveOperation, Matched, Unmatched};
use analyze::stragglers::{LateArrival, Straggler};
use serde::Serialize;

use crate::clock::Zero;

/// Maximum number of listed collectives. Those with the most waiting and transfer time are listed.
const LISTED: usize = 300;

/// The communication between the ranks of a job.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkPart {
    /// Whether the windows of the ranks overlap in time. Without an overlap, waits between ranks
    /// are undefined.
    pub is_simultaneous: bool,
    pub collectives: Vec<CollectiveView>,
    pub collective_count: u64,
    pub unmatched: Vec<Unmatched>,
    /// All ranks, sorted by how often they arrived last, most often first.
    pub stragglers: Vec<Straggler>,
    /// Causes for which the last rank was late, for each listed collective.
    pub arrivals: Vec<LateArrival>,
    /// Offsets between the clocks of the ranks.
    pub clocks: Vec<RankClock>,
}

/// One collective as the page shows it; see [`Matched`].
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveView {
    pub index: u32,
    /// Name of the kernel without its parameters.
    pub name: String,
    pub operation: CollectiveOperation,
    pub group: String,
    pub group_size: u32,
    /// Bytes of the largest message among the ranks.
    pub bytes: Option<u64>,
    pub dtype: String,
    /// Upper bound of the time in which the data was moved.
    pub transfer_ns: i64,
    pub last_rank: Option<u32>,
    /// Time from the second-last arrival to the last arrival.
    pub late_by_ns: i64,
    /// Time from the first arrival to the last arrival.
    pub arrival_spread_ns: i64,
    /// Sum of the waits of all ranks.
    pub wait_ns: i64,
    pub bus_bandwidth_gb_per_s: Option<f64>,
    /// For each rank: its number, its arrival on the page's clock, its wait, and its duration.
    pub ranks: Vec<(u32, i64, i64, i64)>,
}

pub(crate) fn build_part(job: &JobFacts<'_>, zero: &Zero) -> NetworkPart {
    let (scopes, matched, found) = (job.scopes(), job.collectives(), job.stragglers());
    let mut collectives: Vec<CollectiveView> =
        matched.matched.iter().map(|one| view(one, zero)).collect();
    let longest = |one: &CollectiveView| (Reverse(one.wait_ns + one.transfer_ns), one.index);
    collectives.sort_by_key(longest);
    collectives.truncate(LISTED);
    collectives.sort_by_key(|one| one.index);
    let listed = |index| collectives.binary_search_by_key(&index, |one| one.index).is_ok();
    let arrivals = found.arrivals.iter().filter(|late| listed(late.index)).cloned().collect();
    let starts = scopes.iter().map(|scope| scope.window.start).max();
    let ends = scopes.iter().map(|scope| scope.window.end).min();
    NetworkPart {
        is_simultaneous: starts <= ends,
        collectives,
        collective_count: matched.matched.len() as u64,
        unmatched: matched.unmatched.clone(),
        stragglers: found.ranks.clone(),
        arrivals,
        clocks: zero.clocks.clone(),
    }
}

fn view(one: &Matched, zero: &Zero) -> CollectiveView {
    let rank = |part: &analyze::collectives::Participant| {
        let at_ns = zero.at(part.rank, part.arrival_ns);
        (part.rank, at_ns, part.wait_ns, part.end_ns - part.arrival_ns)
    };
    CollectiveView {
        index: one.index,
        name: one.name.clone(),
        operation: one.operation,
        group: one.group.clone(),
        group_size: one.group_size,
        bytes: one.bytes,
        dtype: one.dtype.clone(),
        transfer_ns: one.transfer_ns,
        last_rank: one.last_rank,
        late_by_ns: one.late_by_ns,
        arrival_spread_ns: one.arrival_spread_ns,
        wait_ns: one.participants.iter().map(|part| part.wait_ns).sum(),
        bus_bandwidth_gb_per_s: one.bus_bandwidth_gb_per_s,
        ranks: one.participants.iter().map(rank).collect(),
    }
}
