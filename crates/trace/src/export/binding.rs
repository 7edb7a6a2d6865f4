//! Binds each end of a flow arrow to a slice, as Perfetto's format requires.

use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::Flow;

/// Limit of the search among slices that begin at the same time on the same track.
const LOOKED_AT: usize = 64;

/// Returns for each flow the slice that begins on its track at its time, if there is one.
///
/// If there are several, prefers the slice whose correlation equals the flow's id. Next comes one
/// with a sequence number, as arrows from forward to backward need, and last the innermost slice.
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
    // `max_by_key` returns the last of equal ones, which is the innermost slice.
    at_time.copied().max_by_key(|row| fit(*row))
}
