//! Binds each end of an arrow to a slice. Knows no format.

use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::Flow;

/// Slices that begin at one time on one track, of which more are not looked at.
const LOOKED_AT: usize = 64;

/// By flow: the slice it is bound to, if one begins on its track at its time.
///
/// Of several, the one whose correlation is the arrow's id, else one with a sequence number, as
/// arrows from forward to backward join, else the innermost.
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
    // Of equal ones the last, which is the innermost.
    at_time.copied().max_by_key(|row| fit(*row))
}
