//! Rejects matches that contradict the times of their kernels. If every rank waits for every other
//! one, a collective cannot end on one rank before it has begun on all.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gather::CollectiveCall;
use super::message::CollectiveOperation;
use crate::facts::clock;
use crate::facts::scope::Scope;

/// The reason why a kernel belongs to no matched collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The kernel carries a message between two ranks, which is not a collective.
    PointToPoint,
    /// Another rank of the group, whose trace was read, has no matching kernel in its window.
    MissingOnRank,
    /// More ranks have a matching kernel than the process group has members.
    MoreRanksThanGroup,
    /// The recordings of the ranks do not overlap in time, and their collectives have no sequence
    /// numbers by which the kernels of one collective could be recognized.
    RecordedApart,
    /// One rank's kernel ended before another's began, which a collective of this kind does not
    /// allow. The kernels were matched by their order, and the order was wrong.
    EndsApart,
}

/// Tolerance for contradictions between times, because profilers round and clocks jitter.
const JITTER_NS: i64 = 20_000;

/// The facts about a job's recordings by which matches are rejected.
pub(super) struct Refuted {
    /// Whether the recordings of some ranks do not overlap in time.
    apart: bool,
    /// Nanoseconds by which the clock of each rank runs ahead.
    ahead: BTreeMap<u32, i64>,
}

impl Refuted {
    /// Estimates the clock skew of the ranks from the ends of matched kernels, so that their times
    /// can be compared.
    pub fn new(scopes: &[Scope<'_>], calls: &[CollectiveCall]) -> Self {
        let ranks: Vec<u32> = scopes.iter().map(|scope| scope.trace.rank).collect();
        let ends: Vec<Vec<Option<i64>>> = calls
            .chunk_by(|a, b| a.key == b.key)
            .map(|together| {
                let end = |rank: &u32| together.iter().find(|call| call.rank == *rank);
                ranks.iter().map(|rank| end(rank).map(|call| call.end)).collect()
            })
            .collect();
        let clocks = clock::skew(&ends, &ranks);
        Self {
            apart: clock::are_apart(scopes.iter().map(|scope| &scope.window)),
            ahead: clocks.iter().map(|clock| (clock.rank, clock.ahead_ns)).collect(),
        }
    }

    /// Returns why some kernels cannot be one collective, or `None` if their times are consistent.
    pub fn reason(&self, together: &[CollectiveCall]) -> Option<Reason> {
        let first = &together[0];
        let mut ranks: Vec<u32> = together.iter().map(|call| call.rank).collect();
        ranks.dedup();
        if first.group_size.is_some_and(|size| ranks.len() > size as usize) {
            return Some(Reason::MoreRanksThanGroup);
        }
        // A sequence number that the job recorded is better evidence than times.
        if first.sequence.is_some() || ranks.len() < 2 {
            return None;
        }
        if self.apart {
            return Some(Reason::RecordedApart);
        }
        let ahead = |call: &CollectiveCall| self.ahead.get(&call.rank).copied().unwrap_or_default();
        let last_start = together.iter().map(|call| call.start - ahead(call)).max()?;
        let first_end = together.iter().map(|call| call.end - ahead(call)).min()?;
        let is_refuted = last_start > first_end + JITTER_NS && waits_for_all(first.operation);
        is_refuted.then_some(Reason::EndsApart)
    }
}

/// Returns whether an operation cannot end on any rank before all ranks have begun it.
fn waits_for_all(operation: CollectiveOperation) -> bool {
    matches!(
        operation,
        CollectiveOperation::AllReduce
            | CollectiveOperation::AllGather
            | CollectiveOperation::ReduceScatter
            | CollectiveOperation::AllToAll
            | CollectiveOperation::Barrier
    )
}
