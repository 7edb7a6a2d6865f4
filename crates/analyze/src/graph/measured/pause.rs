//! Finds the pauses of threads. A pause is the time between two nodes of a thread in which only
//! Python frames, or no rows at all, were recorded. A pause is stored as the weight of an edge, so
//! edits can change a part of it.

use std::collections::BTreeMap;

use trace::store::TrackId;

use super::MeasuredGraph;
use crate::facts::interval::Interval;
use crate::graph::{Edge, EdgeId, EdgeKind};

/// The pauses of all threads of a graph, indexed by rank and thread.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// Pauses of each rank and thread with their edges, sorted by start.
    by_thread: BTreeMap<(u32, TrackId), Vec<(Interval, EdgeId)>>,
}

impl Pauses {
    /// # Cost
    /// The cost is `O(n log n)` in the edges of the graph.
    pub fn new(measured: &MeasuredGraph) -> Self {
        let mut by_thread: BTreeMap<_, Vec<(Interval, EdgeId)>> = BTreeMap::new();
        for (id, edge) in measured.graph.edges() {
            if let Some((scope, track, span)) = measured.pause(&edge) {
                by_thread.entry((scope, track)).or_default().push((span, id));
            }
        }
        by_thread.values_mut().for_each(|pauses| pauses.sort_unstable());
        Self { by_thread }
    }

    /// Returns the edges whose pauses overlap some thread spans of a rank, with the overlap in
    /// nanoseconds. The spans of a thread must not overlap.
    pub fn within(
        &self,
        scope: u32,
        spans: impl IntoIterator<Item = (TrackId, Interval)>,
    ) -> Vec<(EdgeId, i64)> {
        let mut parts: BTreeMap<EdgeId, i64> = BTreeMap::new();
        for (track, (from, to)) in spans {
            let pauses = self.by_thread.get(&(scope, track)).map_or(&[][..], Vec::as_slice);
            let first = pauses.partition_point(|((_, end), _)| *end <= from);
            let inside = pauses[first..].iter().take_while(|((start, _), _)| *start < to);
            for ((start, end), edge) in inside {
                *parts.entry(*edge).or_default() += (*end).min(to) - (*start).max(from);
            }
        }
        parts.into_iter().collect()
    }
}

impl MeasuredGraph {
    /// Returns the rank's index, the thread and the time of the pause that an edge represents. The
    /// result is `None` for edges of other kinds and for edges without weight.
    fn pause(&self, edge: &Edge) -> Option<(u32, TrackId, Interval)> {
        let (source, target) = (edge.source.index(), edge.target.index());
        let is_pause = edge.kind == EdgeKind::ProgramOrder && edge.weight > 0;
        // The node of the window's start comes before the first node of a thread, and that of its
        // end after the last.
        let origin = match self.origins[target].track() {
            Some(_) => self.origins[target],
            None => self.origins[source],
        };
        let is_host = is_pause && !origin.category.is_of_device() && !self.is_loading(origin);
        let start = self.times.end[source];
        let span = (start, start + edge.weight);
        origin.track().filter(|_| is_host).map(|track| (origin.scope, track, span))
    }
}
