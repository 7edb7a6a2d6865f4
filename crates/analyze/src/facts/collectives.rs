//! Collectives, matched across ranks: who arrived when, who waited, how long the transfer took.
//!
//! A collective cannot end before its last participant has come, so the ranks' kernels begin at
//! different times and end together: what a kernel lasts is mostly waiting.

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

/// Every collective of a job's windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collectives {
    /// Sorted by last arrival, the time at which a collective could begin.
    pub matched: Vec<Matched>,
    /// Kernels that belong to no matched collective, counted.
    pub unmatched: Vec<Unmatched>,
}

/// One collective as all ranks saw it.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Matched {
    /// Place of the collective in [`Collectives::matched`].
    pub index: u32,
    /// The kernel's name up to its parameters, on the lowest rank.
    pub name: String,
    pub operation: CollectiveOperation,
    /// Name of the process group; empty if the trace names none.
    pub group: String,
    /// Description of the process group.
    pub group_description: String,
    /// Number of participants that the trace states, or else the number of ranks seen.
    pub group_size: u32,
    /// Number of ranks whose kernel of this collective was recorded.
    pub ranks_seen: u32,
    /// Place in the group's sequence, if the trace has it.
    pub sequence: Option<u64>,
    /// Bytes of the larger side of the message, of the rank with the most.
    pub bytes: Option<u64>,
    /// Type of the elements; empty if unknown.
    pub dtype: String,
    /// Nanoseconds that moving the data took at most: the shortest kernel, the last rank's, as a
    /// rule. An upper bound where not all ranks were seen.
    pub transfer_ns: i64,
    /// The rank that arrived last, the lowest of several; `None` if only one was seen.
    pub last_rank: Option<u32>,
    /// How much later the last rank came than the one before it.
    pub late_by_ns: i64,
    /// Last arrival − first arrival.
    pub arrival_spread_ns: i64,
    /// Last end − first end: how well the ranks' clocks agree, for operations in which all wait.
    pub end_spread_ns: i64,
    /// `bytes · factor / transfer_ns`, with the factors of NCCL's own tests: 2(n−1)/n for
    /// all-reduce, 1 for broadcast and reduce, (n−1)/n else.
    pub bus_bandwidth_gb_per_s: Option<f64>,
    /// One per rank, by rank, then device.
    pub participants: Vec<Participant>,
}

/// One rank in one collective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Participant {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    pub row: u32,
    /// Bytes of the larger side of its message.
    pub bytes: Option<u64>,
    /// When its kernel began, absolute nanoseconds.
    pub arrival_ns: i64,
    /// When its kernel ended, absolute nanoseconds.
    pub end_ns: i64,
    /// Nanoseconds until the last rank arrived; 0 if only one was seen.
    pub wait_ns: i64,
}

/// Kernels of one rank and name without counterparts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unmatched {
    pub rank: u32,
    /// The kernel's name up to its parameters.
    pub name: String,
    pub group: String,
    pub reason: Reason,
    pub count: u64,
}

/// One collective on one rank, flat.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct CollectiveRow {
    pub index: u32,
    pub rank: u32,
    pub name: String,
    pub operation: CollectiveOperation,
    /// Name of the process group.
    pub group: String,
    pub group_size: u32,
    /// Place in the group's sequence.
    pub sequence: Option<u64>,
    /// Bytes of the larger side of this rank's message.
    pub bytes: Option<u64>,
    pub dtype: String,
    pub device: i32,
    pub stream: i32,
    /// When this rank's kernel began, absolute nanoseconds.
    pub arrival_ns: i64,
    /// When it ended, absolute nanoseconds.
    pub end_ns: i64,
    pub duration_ns: i64,
    /// How long this rank waited for the last one.
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
/// Two kernels are one collective if they agree in process group (name and ranks), operation and
/// place in the group's sequence. Where a trace has no sequence, the place is the ordinal among
/// the rank's kernels of that group and operation, and of that size where all ranks must agree in
/// it, counted from the start of the step that launched them if all traces have steps. With one
/// rank, each of its collectives stands alone.
///
/// # Cost
/// `O(n log n)` in the communication rows of all ranks.
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
    /// that share no time may be of different runs, so their clocks are compared and not corrected.
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

    /// One row per collective and rank, in order of index, then rank.
    pub fn rows(&self) -> Vec<CollectiveRow> {
        let match_one =
            |one: &Matched| one.participants.iter().map(|rank| row(one, rank)).collect();
        self.matched.iter().flat_map::<Vec<_>, _>(match_one).collect()
    }
}

/// Returns the arrival of the last rank.
pub fn last_arrival(matched: &Matched) -> i64 {
    matched.participants.iter().map(|rank| rank.arrival_ns).max().unwrap_or_default()
}

/// Returns the ranks of each group whose traces were read.
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
            // A rank whose recording was cut may have taken part although its row is missing.
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
    let transfer_ns =
        participants.iter().map(|rank| rank.end_ns - rank.arrival_ns).min().unwrap_or_default();
    let group_size = first.group_size.unwrap_or(participants.len() as u32);
    let bytes = calls.iter().filter_map(|call| call.bytes).max();
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
