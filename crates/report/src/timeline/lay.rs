//! Arranges the events of a track in lanes without overlaps.

use std::cmp::Reverse;

use trace::store::{EventKind, Trace};

use super::event::DrawnEvent;

/// Depth from which events share the last lane. Events that overlap there are shortened.
const DEEPEST: usize = 200;

/// A lane with its events in order of start. The events do not overlap.
#[derive(Clone, Debug)]
pub(super) struct PackedLane {
    pub rank: u32,
    pub track: u32,
    pub depth: u32,
    pub is_device: bool,
    pub events: Vec<DrawnEvent>,
}

/// Arranges the events of a track in lanes from top to bottom. On devices, annotations come first,
/// followed by device work and all other events.
pub(super) fn lanes(
    trace: &Trace,
    events: Vec<DrawnEvent>,
    is_device: bool,
    rank: u32,
    track: u32,
) -> Vec<PackedLane> {
    let mut groups: [Vec<DrawnEvent>; 3] = Default::default();
    for event in events {
        let group = match trace.kind(event.row) {
            _ if !is_device => 0,
            EventKind::DeviceAnnotation => 0,
            kind if kind.is_device_work() => 1,
            _ => 2,
        };
        groups[group].push(event);
    }
    let mut lines: Vec<PackedLane> = Vec::new();
    for group in groups {
        let first = lines.len();
        for (depth, events) in stacked(group).into_iter().enumerate() {
            let depth = (first + depth) as u32;
            lines.push(PackedLane { rank, track, depth, is_device, events });
        }
    }
    lines
}

/// Stacks events. Each event is placed below all events that are open when it starts.
fn stacked(mut events: Vec<DrawnEvent>) -> Vec<Vec<DrawnEvent>> {
    events.sort_by_key(|event| (event.start, Reverse(event.end), event.row));
    let mut lanes: Vec<Vec<DrawnEvent>> = Vec::new();
    let mut open: Vec<i64> = Vec::new();
    for mut event in events {
        while open.last().is_some_and(|end| *end <= event.start) {
            open.pop();
        }
        let depth = open.len().min(DEEPEST);
        open.truncate(depth);
        open.push(event.end);
        if lanes.len() <= depth {
            lanes.push(Vec::new());
        }
        if let Some(before) = lanes[depth].last() {
            // An overlap occurs only in the deepest lane, where the later event is shortened.
            event.start = event.start.max(before.end);
            event.end = event.end.max(event.start);
        }
        lanes[depth].push(event);
    }
    lanes
}
