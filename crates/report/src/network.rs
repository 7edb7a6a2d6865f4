//! The network tab: collectives with arrival, wait and transfer of each rank, and stragglers.

use std::cmp::Reverse;

use analyze::JobFacts;
use analyze::clock::RankClock;
use analyze::collectives::{CollectiveOperation, Matched, Unmatched};
use analyze::stragglers::{LateArrival, Straggler};
use serde::Serialize;

use crate::clock::Zero;

/// Limit of the listed collectives. Those with the most waiting and transfer are listed.
const LISTED: usize = 300;

/// The communication between the ranks of a job.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkPart {
    /// Whether the ranks' windows overlap in time. If not, waiting between ranks is undefined.
    pub is_simultaneous: bool,
    pub collectives: Vec<CollectiveView>,
    pub collective_count: u64,
    pub unmatched: Vec<Unmatched>,
    /// All ranks; the one that was last most often comes first.
    pub stragglers: Vec<Straggler>,
    /// Causes of the lateness of the last rank, for each listed collective.
    pub arrivals: Vec<LateArrival>,
    /// Offsets between the ranks' clocks.
    pub clocks: Vec<RankClock>,
}

/// One collective; see [`Matched`].
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveView {
    pub index: u32,
    /// Name of the kernel without its parameters.
    pub name: String,
    pub operation: CollectiveOperation,
    pub group: String,
    pub group_size: u32,
    /// Size of the largest message.
    pub bytes: Option<u64>,
    pub dtype: String,
    /// Upper limit of the time for moving the data.
    pub transfer_ns: i64,
    pub last_rank: Option<u32>,
    /// Time after the second-last arrival.
    pub late_by_ns: i64,
    /// Last arrival minus first.
    pub arrival_spread_ns: i64,
    /// Sum over all ranks.
    pub wait_ns: i64,
    pub bus_bandwidth_gb_per_s: Option<f64>,
    /// Rank, arrival on the page's clock, wait, duration.
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
