//! Binds each end of a flow arrow to a slice, as Perfetto's format requires.

use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::Flow;

/// Largest number of slices searched among those that begin at the same time on the same track.
const LOOKED_AT: usize = 64;

/// Returns for each flow the slice that begins on its track at its time, or `None` if there is no
/// such slice.
///
/// If several slices begin there, the slice whose correlation id equals the flow's id is preferred.
/// The next choice is a slice with a sequence number, because arrows from forward to backward
/// operators connect such slices. The last choice is the innermost slice.
pub fn bind(part: &MergedPart<'_>, lanes: &SliceLanes) -> Vec<Option<u32>> {
    part.trace.flows.iter().map(|flow| bound(part, lanes, flow)).collect()
}

fn bound(part: &MergedPart<'_>, lanes: &SliceLanes, flow: &Flow) -> Option<u32> {
    let slices = &part.trace.slices;
    let rows = lanes.rows(flow.track.0 as usize);
    let first = rows.partition_point(|row| slices.start(*row) < flow.time);
    let at_time = rows[first..].iter().take(LOOKED_AT);
    let at_time = at_time.take_while(|row| slices.start(**row) == flow.time);
    let fit = |row: u32| {
        let is_correlated = slices.correlation(row) == Some(flow.id);
        (is_correlated, slices.sequence.get(row).is_some())
    };
    // `max_by_key` returns the last of several maximal slices, which is the innermost one.
    at_time.copied().max_by_key(|row| fit(*row))
}
