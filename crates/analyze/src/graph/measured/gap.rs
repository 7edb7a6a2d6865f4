//! Explains gaps of a stream whose next work had already been launched, by a wait for work of
//! another stream.
//!
//! If one thread makes a stream wait and another thread launches on it, the order of calls does not
//! show which streams the wait concerns. The times show it instead. If a stream is idle although
//! its next work has been launched, and that work begins as soon as work of another stream has
//! ended, then it waited for that other work.

use super::device::{DeviceWork, WorkPiece};
use super::draft::Draft;
use super::wait::Waits;
use crate::facts::scope::Scope;

/// Minimum length of a gap that needs an explanation.
const GAP_NS: i64 = 30_000;
/// Work that waited begins within this time after the end of the awaited work.
const NEAR_NS: i64 = 25_000;

/// Adds the waits for other streams that explain the gaps.
pub(super) fn explain(
    draft: &mut Draft,
    scope: &Scope<'_>,
    waits: &Waits<'_, '_>,
    device: &mut DeviceWork,
) {
    let asked = waits.stream_waits();
    if asked.is_empty() || device.streams.len() < 2 {
        return;
    }
    let mut ends: Vec<(i64, usize)> =
        device.works.iter().enumerate().map(|(at, work)| (work.end, at)).collect();
    ends.sort_unstable();
    let launched = |work: &WorkPiece| Some(scope.trace.slices.start(scope.links().call(work.row)?));
    let mut found = Vec::new();
    for stream in &device.streams {
        for at in stream.clone().skip(1) {
            let work = &device.works[at];
            let call = scope.links().call(work.row);
            let called = call.map_or(i64::MIN, |call| scope.trace.slices.end(call));
            let ready = device.works[at - 1].end.max(called);
            if work.start - ready < GAP_NS {
                continue;
            }
            let until = ends.partition_point(|(end, _)| *end <= work.start);
            let near = ends[..until].iter().rev();
            let near = near.take_while(|(end, _)| *end >= (work.start - NEAR_NS).max(ready));
            let begun = call.map(|call| scope.trace.slices.start(call));
            let is_awaited = |other: &usize| {
                let from = launched(&device.works[*other]);
                let first = asked.partition_point(|time| from.is_some_and(|from| *time < from));
                // Waits that were requested before the recording began are unknown, so any is
                // possible for such work.
                let has_asked =
                    begun.is_none_or(|begun| asked.get(first).is_some_and(|time| *time < begun));
                has_asked && !stream.contains(other)
            };
            let awaited = near.map(|(_, other)| *other).find(|other| is_awaited(other));
            found.extend(awaited.map(|other| (at as u32, other as u32)));
        }
    }
    found.retain(|wait| !device.stream_waits.contains(wait));
    draft.evidence.stream_waits_inferred += found.len() as u64;
    device.stream_waits.extend(found);
}
