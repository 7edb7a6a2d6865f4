//! Matches collectives across ranks, to find who arrived when, who waited, and how long the
//! transfer took.
//!
//! A collective cannot end before its last participant has arrived, so the ranks' kernels begin at
//! different times and end together. Most of a kernel's duration is therefore waiting.

mod gather;
mod message;
mod refute;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;

use crate::facts::clock::{self, RankClock};
use crate::facts::scope::Scope;

pub use message::CollectiveOperation;
pub use refute::Reason;

/// All collectives in the windows of a job's ranks, matched across ranks where possible.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collectives {
    /// Matched collectives sorted by their last arrival, which is the earliest time at which the
    /// transfer could begin.
    pub matched: Vec<Matched>,
    /// Number of kernels that belong to no matched collective, by rank, name and reason.
    pub unmatched: Vec<Unmatched>,
}

/// One collective as seen by all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Matched {
    /// Index of the collective in [`Collectives::matched`].
    pub index: u32,
    /// The kernel's name without its parameters, from the lowest rank.
    pub name: String,
    pub operation: CollectiveOperation,
    /// Name of the process group; empty if the trace names none.
    pub group: String,
    pub group_description: String,
    /// Number of participants according to the trace, or else the number of ranks seen.
    pub group_size: u32,
    /// Number of ranks whose kernel of this collective was recorded.
    pub ranks_seen: u32,
    /// Sequence number of the collective within its process group, if the trace has it.
    pub sequence: Option<u64>,
    /// Bytes of the larger side of the message (input or output), maximum over the ranks.
    pub bytes: Option<u64>,
    /// Element type of the message; empty if unknown.
    pub dtype: String,
    /// Upper bound of the time that moving the data took, in nanoseconds. The bound is the duration
    /// of the shortest kernel, which is usually that of the last rank. The bound overestimates the
    /// transfer if not all ranks were seen.
    pub transfer_ns: i64,
    /// The rank that arrived last, or the lowest of several; `None` if only one rank was seen.
    pub last_rank: Option<u32>,
    /// Time by which the last rank arrived later than the rank before it.
    pub late_by_ns: i64,
    /// Time from the first rank's arrival to the last rank's arrival.
    pub arrival_spread_ns: i64,
    /// Last end − first end. The difference shows how well the ranks' clocks agree, for operations
    /// in which all ranks wait.
    pub end_spread_ns: i64,
    /// `bytes · factor / transfer_ns`, with the factors of nccl-tests: 2(n−1)/n for all-reduce, 1
    /// for broadcast and reduce, (n−1)/n for other operations.
    pub bus_bandwidth_gb_per_s: Option<f64>,
    /// The participants, sorted by rank, then device.
    pub participants: Vec<Participant>,
}

/// One rank in one collective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Participant {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    pub row: u32,
    /// Bytes of the larger side of this rank's message, input or output.
    pub bytes: Option<u64>,
    /// Start of the rank's kernel, in absolute nanoseconds.
    pub arrival_ns: i64,
    /// End of the rank's kernel, in absolute nanoseconds.
    pub end_ns: i64,
    /// Nanoseconds from this rank's arrival to that of the last rank; 0 if only one rank was seen.
    pub wait_ns: i64,
}

/// Number of kernels of one rank and name without counterparts on other ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unmatched {
    pub rank: u32,
    /// The kernel's name without its parameters.
    pub name: String,
    pub group: String,
    pub reason: Reason,
    pub count: u64,
}

/// One collective on one rank, flattened into a row of the table of collectives.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct CollectiveRow {
    pub index: u32,
    pub rank: u32,
    pub name: String,
    pub operation: CollectiveOperation,
    pub group: String,
    pub group_size: u32,
    /// Sequence number of the collective within its process group.
    pub sequence: Option<u64>,
    /// Bytes of the larger side of this rank's message, input or output.
    pub bytes: Option<u64>,
    pub dtype: String,
    pub device: i32,
    pub stream: i32,
    /// Start of this rank's kernel, in absolute nanoseconds.
    pub arrival_ns: i64,
    /// End of this rank's kernel, in absolute nanoseconds.
    pub end_ns: i64,
    pub duration_ns: i64,
    /// Nanoseconds that this rank waited for the last rank.
    pub wait_ns: i64,
    pub transfer_ns: i64,
    pub last_rank: Option<u32>,
    pub late_by_ns: i64,
    pub arrival_spread_ns: i64,
    pub end_spread_ns: i64,
    pub bus_bandwidth_gb_per_s: Option<f64>,
}

/// Matches the collectives in the windows of the ranks of one job.
///
/// Two kernels form one collective if they agree in process group (name and ranks), operation and
/// sequence number within the group. A trace without sequence numbers is matched by ordinal among
/// the rank's kernels of that group and operation, and of that size if all ranks must use the same
/// size. Ordinals count from the start of the step that launched the kernel, if all traces have
/// steps. In a job with one rank, each collective has one participant.
///
/// # Cost
/// The cost is `O(n log n)` in the communication rows of all ranks.
pub fn match_collectives(scopes: &[Scope<'_>]) -> Collectives {
    let (mut calls, mut counts) = (gather::calls(scopes), BTreeMap::new());
    let mut count = |call: &gather::CollectiveCall, reason| {
        let key = (call.rank, call.name.clone(), call.group.name.clone(), reason);
        *counts.entry(key).or_insert(0u64) += 1;
    };
    calls.retain(|call| {
        let is_collective = call.operation != CollectiveOperation::PointToPoint;
        if !is_collective {
            count(call, Reason::PointToPoint);
        }
        is_collective
    });
    calls.sort_by(|a, b| (&a.key, a.rank, a.device).cmp(&(&b.key, b.rank, b.device)));
    // A rank whose trace was not read cannot be missing, so only the ranks that were read are
    // expected.
    let members = members(scopes, &calls);
    let refuted = refute::Refuted::new(scopes, &calls);
    let mut matched = Vec::new();
    for together in calls.chunk_by(|a, b| a.key == b.key) {
        let expected = &members[&together[0].key.group];
        let is_there = |rank: &u32| together.iter().any(|call| call.rank == *rank);
        let reason = match expected.iter().all(is_there) {
            true => refuted.reason(together),
            false => Some(Reason::MissingOnRank),
        };
        match reason {
            None => matched.push(join(together)),
            Some(reason) => together.iter().for_each(|call| count(call, reason)),
        }
    }
    matched.sort_by_key(|one: &Matched| (last_arrival(one), one.participants[0].arrival_ns));
    // Indices follow the order of last arrivals, so that they are stable from run to run.
    for (index, one) in matched.iter_mut().enumerate() {
        one.index = index as u32;
    }
    let unmatched = counts.into_iter().map(|((rank, name, group, reason), count)| Unmatched {
        rank,
        name,
        group,
        reason,
        count,
    });
    Collectives { matched, unmatched: unmatched.collect() }
}

impl Collectives {
    /// Estimates the offset of each rank's clock from the ends of matched collectives. Recordings
    /// that do not overlap in time may come from different runs, so their clocks are compared but
    /// not corrected.
    pub fn compare_clocks(&self, scopes: &[Scope<'_>]) -> Vec<RankClock> {
        let ranks: Vec<u32> = scopes.iter().map(|scope| scope.trace.rank).collect();
        let end = |one: &Matched, rank: u32| {
            one.participants.iter().find(|part| part.rank == rank).map(|part| part.end_ns)
        };
        let ends = |one: &Matched| ranks.iter().map(|rank| end(one, *rank)).collect();
        let ends: Vec<Vec<Option<i64>>> = self.matched.iter().map(ends).collect();
        let mut clocks = clock::skew(&ends, &ranks);
        if clock::are_apart(scopes.iter().map(|scope| &scope.window)) {
            clocks.iter_mut().for_each(|clock| clock.correction_ns = 0);
        }
        clocks
    }

    /// Returns one row per collective and rank, sorted by index of the collective, then rank.
    pub fn rows(&self) -> Vec<CollectiveRow> {
        let match_one =
            |one: &Matched| one.participants.iter().map(|rank| row(one, rank)).collect();
        self.matched.iter().flat_map::<Vec<_>, _>(match_one).collect()
    }
}

/// Returns the time at which the last rank arrived at a collective.
pub fn last_arrival(matched: &Matched) -> i64 {
    matched.participants.iter().map(|rank| rank.arrival_ns).max().unwrap_or_default()
}

/// Returns, for each process group, the ranks whose traces were read.
fn members(scopes: &[Scope<'_>], calls: &[gather::CollectiveCall]) -> BTreeMap<u32, Vec<u32>> {
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for group in calls.chunk_by(|a, b| a.key.group == b.key.group) {
        let named = message::ranks(&group[0].group.ranks);
        let mut ranks: Vec<u32> = if group[0].group.name.is_empty() {
            scopes.iter().map(|scope| scope.trace.rank).collect()
        } else if let Some(named) = named {
            let read = |rank: &u32| scopes.iter().any(|scope| scope.trace.rank == *rank);
            named.into_iter().filter(read).collect()
        } else {
            // A rank whose recording was cut may have taken part in the collective although its row
            // is missing.
            let cut = scopes.iter().filter(|scope| scope.trace.cut.is_some());
            let seen = group.iter().map(|call| call.rank);
            seen.chain(cut.map(|scope| scope.trace.rank)).collect()
        };
        ranks.sort_unstable();
        ranks.dedup();
        members.insert(group[0].key.group, ranks);
    }
    members
}

fn join(calls: &[gather::CollectiveCall]) -> Matched {
    let first = &calls[0];
    let last_arrival = calls.iter().map(|call| call.start).max().unwrap_or_default();
    let participants: Vec<Participant> = calls
        .iter()
        .map(|call| Participant {
            rank: call.rank,
            device: call.device,
            stream: call.stream,
            row: call.row,
            bytes: call.bytes,
            arrival_ns: call.start,
            end_ns: call.end,
            wait_ns: last_arrival - call.start,
        })
        .collect();
    let arrivals = || participants.iter().map(|rank| rank.arrival_ns);
    let ends = || participants.iter().map(|rank| rank.end_ns);
    let spread = |least: Option<i64>, most: Option<i64>| most.zip(least).map_or(0, |(a, b)| a - b);
    let several = participants.len() > 1;
    let last = participants.iter().position(|rank| rank.arrival_ns == last_arrival);
    let others = participants.iter().enumerate().filter(|(at, _)| Some(*at) != last);
    let second = others.map(|(_, rank)| rank.arrival_ns).max();
    // The last rank does not wait, so the shortest kernel is closest to the time of the transfer.
    let transfer_ns =
        participants.iter().map(|rank| rank.end_ns - rank.arrival_ns).min().unwrap_or_default();
    let group_size = first.group_size.unwrap_or(participants.len() as u32);
    let bytes = calls.iter().filter_map(|call| call.bytes).max();
    // The factors of nccl-tests depend on the size of the whole group, not on how many ranks were
    // read.
    let bus = |bytes: u64| {
        let moved = bytes as f64 * message::bus_factor(first.operation, group_size);
        (transfer_ns > 0).then(|| (moved / transfer_ns as f64 * 1e4).round() / 1e4)
    };
    Matched {
        index: 0,
        name: first.name.clone(),
        operation: first.operation,
        group: first.group.name.clone(),
        group_description: first.group.description.clone(),
        group_size,
        ranks_seen: participants.len() as u32,
        sequence: first.sequence,
        bytes,
        dtype: first.dtype.clone(),
        transfer_ns,
        last_rank: last.filter(|_| several).map(|at| participants[at].rank),
        late_by_ns: second.map_or(0, |second| last_arrival - second),
        arrival_spread_ns: spread(arrivals().min(), arrivals().max()),
        end_spread_ns: spread(ends().min(), ends().max()),
        bus_bandwidth_gb_per_s: bytes.and_then(bus),
        participants,
    }
}

fn row(one: &Matched, rank: &Participant) -> CollectiveRow {
    CollectiveRow {
        index: one.index,
        rank: rank.rank,
        name: one.name.clone(),
        operation: one.operation,
        group: one.group.clone(),
        group_size: one.group_size,
        sequence: one.sequence,
        bytes: rank.bytes,
        dtype: one.dtype.clone(),
        device: rank.device,
        stream: rank.stream,
        arrival_ns: rank.arrival_ns,
        end_ns: rank.end_ns,
        duration_ns: rank.end_ns - rank.arrival_ns,
        wait_ns: rank.wait_ns,
        transfer_ns: one.transfer_ns,
        last_rank: one.last_rank,
        late_by_ns: one.late_by_ns,
        arrival_spread_ns: one.arrival_spread_ns,
        end_spread_ns: one.end_spread_ns,
        bus_bandwidth_gb_per_s: one.bus_bandwidth_gb_per_s,
    }
}
