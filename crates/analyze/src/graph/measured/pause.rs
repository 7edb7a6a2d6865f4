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
    /// Edges of the pauses of each rank and thread, sorted by start of the pause.
    by_thread: BTreeMap<(u32, TrackId), Vec<EdgeId>>,
}

impl Pauses {
    /// # Cost
    /// The cost is `O(n log n)` in the edges of the graph.
    pub fn new(measured: &MeasuredGraph) -> Self {
        let mut by_thread: BTreeMap<_, Vec<EdgeId>> = BTreeMap::new();
        for (id, edge) in measured.graph.edges() {
            if let Some(thread) = measured.paused_thread(&edge) {
                by_thread.entry(thread).or_default().push(id);
            }
        }
        // The nodes of a thread follow in order of time, so this sort finds one long sorted run.
        let start = |edge: &EdgeId| measured.times.end[measured.graph.edge(*edge).source.index()];
        by_thread.values_mut().for_each(|pauses| pauses.sort_by_key(start));
        Self { by_thread }
    }

    /// Returns the edges whose pauses overlap some thread spans of a rank, with the overlap in
    /// nanoseconds. The spans of a thread must not overlap.
    pub fn within(
        &self,
        measured: &MeasuredGraph,
        scope: u32,
        spans: impl IntoIterator<Item = (TrackId, Interval)>,
    ) -> Vec<(EdgeId, i64)> {
        let mut parts: BTreeMap<EdgeId, i64> = BTreeMap::new();
        for (track, (from, to)) in spans {
            let pauses = self.by_thread.get(&(scope, track)).map_or(&[][..], Vec::as_slice);
            let first = pauses.partition_point(|edge| measured.pause(*edge).1 <= from);
            let rest = pauses[first..].iter().map(|edge| (*edge, measured.pause(*edge)));
            for (edge, (start, end)) in rest.take_while(|(_, (start, _))| *start < to) {
                *parts.entry(edge).or_default() += end.min(to) - start.max(from);
            }
        }
        parts.into_iter().collect()
    }
}

impl MeasuredGraph {
    /// Returns the index of the rank and the thread whose pause an edge represents. The result is
    /// `None` for edges of other kinds and for edges without weight.
    fn paused_thread(&self, edge: &Edge) -> Option<(u32, TrackId)> {
        let is_pause = edge.kind == EdgeKind::ProgramOrder && edge.weight > 0;
        // The node of the window's start comes before the first node of a thread, and that of its
        // end after the last.
        let target = self.origins[edge.target.index()];
        let source = || self.origins[edge.source.index()];
        let origin = if target.track().is_some() { target } else { source() };
        let is_host = is_pause && !origin.category.is_of_device() && !self.is_loading(origin);
        origin.track().filter(|_| is_host).map(|track| (origin.scope, track))
    }

    /// Returns the time of the pause that an edge represents.
    fn pause(&self, edge: EdgeId) -> Interval {
        let Edge { source, weight, .. } = self.graph.edge(edge);
        let start = self.times.end[source.index()];
        (start, start + weight)
    }
}
