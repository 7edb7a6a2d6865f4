//! Finds gaps in which a device was idle although its next work had been launched.

use super::rank::RankFacts;
use crate::tables::idle::{DeviceCause, Gap};

/// Gaps in which a device of a rank was idle although its next work had already been launched.
#[derive(Debug)]
pub(crate) struct Stalls<'a> {
    /// Gaps sorted by device and start.
    pub gaps: Vec<&'a Gap<'a>>,
    /// Number of devices that had work, at least 1.
    pub device_count: i64,
    /// Total time of the gaps, averaged over the devices.
    pub idle_ns: i64,
    /// The part of `idle_ns` in gaps that end with work of a CUDA graph.
    pub in_graphs_ns: i64,
    /// Time of the gaps directly after the start of a recording, in which work launched before the
    /// recording may have run.
    pub left_out_ns: i64,
}

impl Stalls<'_> {
    /// Returns whether most of the idle time is in gaps that end with work of a graph. Profilers
    /// record some graphs only in part, so the device may have been busy in those gaps.
    pub fn is_doubtful(&self) -> bool {
        2 * self.in_graphs_ns > self.idle_ns
    }
}

/// If such gaps take at least this share of the window, in percent, graphs count as recorded only
/// in part.
const IDLE_PCT: f64 = 5.0;
/// A gap that begins within this time after the start may contain work that was launched before the
/// recording.
const START_NS: i64 = 1_000_000;

impl RankFacts<'_> {
    /// Returns the gaps that suggest missing kernels of graphs, or `None` if there are no such
    /// gaps.
    pub(crate) fn partial_graphs(&self) -> Option<Stalls<'_>> {
        let trace = self.scope.trace;
        if !trace.strings.iter().any(|name| name.contains("GraphLaunch")) {
            return None;
        }
        let stalls = self.stalls(START_NS);
        (stalls.is_doubtful() && self.share(stalls.idle_ns) >= IDLE_PCT).then_some(stalls)
    }

    /// Returns the gaps that end with work that had been launched before the gap ended. If the
    /// window has no steps, gaps that begin within `start_ns` of its start are left out.
    pub(crate) fn stalls(&self, start_ns: i64) -> Stalls<'_> {
        let window = &self.scope.window;
        let is_unknown =
            |gap: &&Gap<'_>| window.steps.is_empty() && gap.start_ns - window.start < start_ns;
        let is_stall = |gap: &&Gap<'_>| gap.cause == DeviceCause::Dependency;
        let (unknown, gaps): (Vec<_>, Vec<_>) =
            self.gaps().iter().filter(is_stall).partition(is_unknown);
        let device_count = i64::from(self.breakdown().device_count).max(1);
        let is_of_graph = |gap: &&&Gap<'_>| gap.ending_row.is_some_and(|row| self.is_of_graph(row));
        let in_graphs: i64 = gaps.iter().filter(is_of_graph).map(|gap| gap.idle_ns).sum();
        Stalls {
            device_count,
            idle_ns: gaps.iter().map(|gap| gap.idle_ns).sum::<i64>() / device_count,
            in_graphs_ns: in_graphs / device_count,
            left_out_ns: unknown.iter().map(|gap| gap.idle_ns).sum(),
            gaps,
        }
    }
}
