//! Reads dependencies from the graph of a recording. The nodes and edges of this graph are used,
//! and its weights are ignored.

use analyze::collectives::{self, CollectiveOperation};
use analyze::graph::measured::{self, MeasuredGraph, NodeOrigin};
use analyze::graph::{EdgeKind, NodeId};
use analyze::skew::Skew;
use analyze::{JobFacts, Scope};
use trace::store::TrackId;

/// The dependencies between the rows of a job's traces: for each row, the rows it waits for.
#[derive(Clone, Debug, Default)]
pub struct Structure {
    pub(super) ranks: Vec<RankWaits>,
    /// Collectives of which all ranks were recorded.
    pub(super) meetings: Vec<Meeting>,
    /// Number of collectives of which some rank was not recorded.
    pub(super) partial: usize,
}

/// The waits of one rank as sorted pairs of trace rows.
#[derive(Clone, Debug, Default)]
pub(super) struct RankWaits {
    /// Pairs of a waiting device row and the device row of another stream for which it waits.
    pub of_streams: Vec<(u32, u32)>,
    /// Pairs of a waiting host row and the device row for which it waits.
    pub of_host: Vec<(u32, u32)>,
    /// Pairs of a device row and the row before it on the same stream.
    pub behind: Vec<(u32, u32)>,
    pub hand_offs: Vec<HandOff>,
    /// Clock offsets of the devices against the host.
    pub skews: Vec<Skew>,
}

/// A hand-off: a thread continued after another thread had finished some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HandOff {
    pub to: TrackId,
    /// Latest time at which the waiting thread continued, in absolute nanoseconds.
    pub resumed: i64,
    pub from: TrackId,
    /// Time at which the awaited thread had finished, in absolute nanoseconds.
    pub done: i64,
}

/// A collective of which all ranks were recorded. Each participant is the index of a scope and a
/// row.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    pub operation: CollectiveOperation,
    pub bytes: u64,
    pub parts: Vec<(usize, u32)>,
}

impl Structure {
    /// Derives the dependencies from the traces of one job. The traces are assumed to belong
    /// together.
    pub fn from_job(job: &JobFacts<'_>) -> Self {
        let (scopes, found) = (job.scopes(), job.collectives());
        let measured = measured::build_measured_graph(&job.ranks, found);
        let mut ranks = vec![RankWaits::default(); scopes.len()];
        for (_, edge) in measured.graph.edges() {
            let (from, to) = (edge.source.index(), edge.target.index());
            let (source, target) = (measured.origins[from], measured.origins[to]);
            let (Some(awaited), Some(waiting)) = (source.row(), target.row()) else { continue };
            let waits = &mut ranks[target.scope as usize];
            let kind = |origin: NodeOrigin, row| scopes[origin.scope as usize].trace.kind(row);
            let is_device = |origin, row| kind(origin, row).is_device_work();
            match edge.kind {
                EdgeKind::Synchronization if is_device(target, waiting) => {
                    waits.of_streams.push((waiting, awaited));
                }
                EdgeKind::Synchronization => waits.of_host.push((waiting, awaited)),
                EdgeKind::StreamOrder if awaited != waiting => {
                    waits.behind.push((waiting, awaited));
                }
                EdgeKind::Data => waits.hand_offs.extend(hand_off(&measured, from, to)),
                _ => {}
            }
        }
        for (waits, facts) in ranks.iter_mut().zip(&job.ranks) {
            waits.skews = facts.skews().to_vec();
            // Several edges can join nodes of the same two rows, so the pairs are made unique.
            for pairs in [&mut waits.of_streams, &mut waits.of_host, &mut waits.behind] {
                pairs.sort_unstable();
                pairs.dedup();
            }
            waits.hand_offs.sort_unstable();
        }
        let meetings = meetings(scopes, found);
        let shared = found.matched.iter().filter(|one| one.group_size > 1);
        let partial = shared.count() - meetings.len();
        Self { ranks, meetings, partial }
    }
}

fn hand_off(measured: &MeasuredGraph, from: usize, to: usize) -> Option<HandOff> {
    let (source, target) = (measured.origins[from], measured.origins[to]);
    Some(HandOff {
        to: target.track()?,
        resumed: measured.graph.start(&measured.times, NodeId(to as u32)),
        from: source.track()?,
        done: measured.times.end[from],
    })
}

fn meetings(scopes: &[Scope<'_>], found: &collectives::Collectives) -> Vec<Meeting> {
    let place = |rank: u32| scopes.iter().position(|scope| scope.trace.rank == rank);
    let whole = found
        .matched
        .iter()
        .filter(|one| one.participants.len() > 1 && one.ranks_seen == one.group_size);
    let meeting = |one: &collectives::Matched| {
        let parts = one.participants.iter().map(|part| Some((place(part.rank)?, part.row)));
        let (operation, bytes) = (one.operation, one.bytes.unwrap_or_default());
        Some(Meeting { operation, bytes, parts: parts.collect::<Option<_>>()? })
    };
    whole.filter_map(meeting).collect()
}

/// Returns the second members of all pairs with the given first member. The pairs must be sorted.
pub(super) fn find_partners(pairs: &[(u32, u32)], first: u32) -> impl Iterator<Item = u32> {
    let from = pairs.partition_point(|pair| pair.0 < first);
    pairs[from..].iter().take_while(move |pair| pair.0 == first).map(|pair| pair.1)
}
