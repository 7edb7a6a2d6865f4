//! Adds a node for each piece of device work, with edges from the nodes that it waited for.

use std::ops::Range;

use trace::store::EventKind;

use super::draft::{Candidate, Draft, DraftNode, NodeOrder};
use super::label::{NodeOrigin, PathCategory, PlacedRank};
use super::rendezvous::Meetings;
use crate::facts::classify::WorkClass;
use crate::facts::distribution;
use crate::facts::interval::Interval;
use crate::facts::scope::Scope;
use crate::facts::skew::{self, Skew};
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind};

const NONE: u32 = u32::MAX;

/// One piece of device work (kernel, copy or memset) in the window.
#[derive(Clone, Debug)]
pub(super) struct WorkPiece {
    pub row: u32,
    /// The node that waits for earlier work.
    pub enter: NodeId,
    /// The last node of the piece that begins in the window; `None` if no node does.
    pub inside: Option<NodeId>,
    /// The node that later work waits for. The two nodes `enter` and `leave` differ only for a
    /// collective in which ranks meet, and for work that reaches beyond the window.
    pub leave: NodeId,
    /// Start of the work, clipped to the window unless the devices' steps end after it.
    pub start: i64,
    pub end: i64,
    /// The node that launched the work, once it is known.
    pub launch: Option<NodeId>,
}

/// Clock corrections of a rank: the skews of its devices, and its meetings with other ranks.
#[derive(Clone, Copy)]
pub(super) struct RankClocks<'a> {
    pub skews: &'a [Skew],
    pub meetings: &'a Meetings,
}

/// The device work of a rank's window, stream after stream, sorted by start within a stream.
#[derive(Debug, Default)]
pub(super) struct DeviceWork {
    pub works: Vec<WorkPiece>,
    /// Range of indices into `works` for each stream, sorted by device, then stream.
    pub streams: Vec<Range<usize>>,
    /// Device and stream of each entry of `streams`.
    pub names: Vec<(i32, i32)>,
    /// For each piece of work, the start of the latest launch on its stream up to and including its
    /// own; ascending within a stream.
    pub launched: Vec<i64>,
    /// Waits of streams for other streams, as pairs (waiting work, awaited work), sorted by waiting
    /// work.
    pub stream_waits: Vec<(u32, u32)>,
    /// Index of the work of each row of the trace.
    work_of: Vec<u32>,
}

impl DeviceWork {
    /// Collects the device work of the window, with times converted to the host's clock.
    pub fn draft(
        draft: &mut Draft,
        (at, scope): PlacedRank<'_, '_>,
        clocks: &RankClocks<'_>,
    ) -> Self {
        let RankClocks { skews, meetings } = *clocks;
        let trace = scope.trace;
        let inside = scope.device_rows.iter().copied().zip(scope.classes.iter().copied());
        let mut rows: Vec<((i32, i32), (u32, WorkClass))> = inside
            .chain(scope.late_work.iter().copied())
            .map(|(row, class)| ((trace.device(row), trace.stream(row)), (row, class)))
            .collect();
        // The rows are already sorted by start, and a stable sort by stream keeps that order within
        // each stream.
        rows.sort_by_key(|(stream, _)| *stream);
        let mut device = Self { work_of: vec![NONE; trace.slices.len()], ..Self::default() };
        for stream in rows.chunk_by(|a, b| a.0 == b.0) {
            let first = device.works.len();
            let mut launched = i64::MIN;
            for &(_, (row, class)) in stream {
                let shift = skew::shift_ns(skews, trace.device(row));
                let call = scope.links().call(row).map(|call| trace.slices.start(call));
                let Some(span) = span(scope, row, shift, call) else { continue };
                launched = launched.max(call.unwrap_or(i64::MIN));
                let category = category(trace.kind(row), class);
                let track = trace.slices.track[row as usize];
                let origin = NodeOrigin::at_row(at, row, track, category);
                let work = work(draft, scope, origin, row, span, meetings);
                device.work_of[row as usize] = device.works.len() as u32;
                device.works.push(work);
                device.launched.push(launched);
            }
            device.streams.push(first..device.works.len());
            device.names.push(stream[0].0);
        }
        device
    }

    /// Returns the index of the work of a row, if the work lies in the window.
    pub fn work(&self, row: u32) -> Option<u32> {
        Some(self.work_of[row as usize]).filter(|work| *work != NONE)
    }

    /// Returns the last work of a stream whose launch began before a given time.
    pub fn last_launched(&self, stream: usize, before: i64) -> Option<u32> {
        let range = self.streams[stream].clone();
        let earlier = self.launched[range.clone()].partition_point(|at| *at < before);
        (earlier > 0).then(|| (range.start + earlier - 1) as u32)
    }

    /// Returns the first work of a stream whose launch began at a given time or later.
    pub fn first_launched(&self, stream: usize, from: i64) -> Option<u32> {
        let range = self.streams[stream].clone();
        let earlier = self.launched[range.clone()].partition_point(|at| *at < from);
        (range.start + earlier < range.end).then_some((range.start + earlier) as u32)
    }
}

/// Returns the time of a piece of work by the host's clock, clipped to the window unless the
/// devices' steps end after it, or `None` if it lies outside.
fn span(scope: &Scope<'_>, row: u32, shift: i64, launched: Option<i64>) -> Option<Interval> {
    let window = &scope.window;
    let is_late = scope.device_span.is_some() && launched.is_some_and(|at| at < window.end);
    let (start, mut end) = scope.clipped_by(row, shift);
    if is_late {
        end = end.max(scope.trace.slices.end(row) - shift);
        let begun = scope.trace.slices.start(row) - shift;
        return (end > window.start).then_some((begun.max(window.start), end));
    }
    let is_outside = start >= window.end || end < start || end <= window.start;
    (!is_outside || (start == end && start > window.start)).then_some((start, end))
}

/// Adds the nodes of a piece of work that is clipped to the window.
fn work(
    draft: &mut Draft,
    scope: &Scope<'_>,
    origin: NodeOrigin,
    row: u32,
    (start, end): Interval,
    meetings: &Meetings,
) -> WorkPiece {
    let until = scope.window.end;
    if end <= until || start >= until {
        let (enter, leave) = nodes(draft, origin, (start, end), meetings);
        let inside = (start < until).then_some(leave);
        return WorkPiece { row, enter, inside, leave, start, end, launch: None };
    }
    let (enter, inside) = nodes(draft, origin, (start, until), meetings);
    let (kind, order) = (draft.kind(inside), NodeOrder::Device);
    let leave = draft.add(DraftNode { kind, start: until, end, order, origin });
    let kind = EdgeKind::StreamOrder;
    draft.edges.push(Edge { kind, source: inside, target: leave, weight: 0 });
    WorkPiece { row, enter, inside: Some(inside), leave, start, end, launch: None }
}

/// Adds the start and the end of the devices' steps if these are longer than the host's steps. The
/// device steps start when all work launched before the window has ended, and end when all work
/// launched inside it has ended.
pub(super) fn steps(
    draft: &mut Draft,
    (at, scope): PlacedRank<'_, '_>,
    start: NodeId,
    end: NodeId,
    device: &DeviceWork,
) -> Option<(NodeId, NodeId)> {
    scope.device_span?;
    let window = &scope.window;
    let launched = |work: &WorkPiece| {
        // Work without a recorded launch counts as launched before the recording.
        let call = scope.links().call(work.row);
        call.map_or(i64::MIN, |call| scope.trace.slices.start(call))
    };
    let mut moment = |until: i64, (otherwise, order): (NodeId, NodeOrder)| {
        let kind = EdgeKind::ProgramOrder;
        let last = device.streams.iter().filter_map(|stream| {
            let works = device.works[stream.clone()].iter();
            works.filter(|work| launched(work) < until).max_by_key(|work| work.end)
        });
        let mut candidates: Vec<Candidate> =
            last.map(|work| Candidate { source: work.leave, kind, usual: 0 }).collect();
        let otherwise = Candidate { source: otherwise, kind, usual: 0 };
        candidates.push(otherwise);
        let ends = candidates.iter().map(|one| draft.end(one.source));
        let time = ends.max().unwrap_or(window.start);
        let marker = draft.marker(at, time, order);
        draft.bind(marker, &candidates, otherwise);
        marker
    };
    let first = moment(window.start, (start, NodeOrder::End));
    let last = moment(window.end, (end, NodeOrder::End));
    Some((first, last))
}

/// Adds the nodes of a piece of work. A collective in which ranks meet has two nodes, its arrival
/// and its transfer; other work has one.
fn nodes(
    draft: &mut Draft,
    origin: NodeOrigin,
    (start, end): Interval,
    meetings: &Meetings,
) -> (NodeId, NodeId) {
    let Some(met) = meetings.time(origin) else {
        let kind = match origin.category {
            PathCategory::Communication => NodeKind::Collective,
            _ => NodeKind::Kernel,
        };
        let node = draft.add(DraftNode { kind, start, end, order: NodeOrder::Device, origin });
        return (node, node);
    };
    let kind = NodeKind::Collective;
    // Two nodes separate waiting for the last rank from the transfer, so that edits can change one
    // without the other.
    let arrival = origin.with_category(PathCategory::CommunicationWait);
    let order = NodeOrder::Device;
    let enter = draft.add(DraftNode { kind, start, end: start, order, origin: arrival });
    let transfer = origin.with_category(PathCategory::CommunicationTransfer);
    let order = NodeOrder::Transfer;
    let leave = draft.add(DraftNode { kind, start: met, end, order, origin: transfer });
    meetings.take_part(origin, enter, leave);
    (enter, leave)
}

fn category(kind: EventKind, class: WorkClass) -> PathCategory {
    match class {
        WorkClass::Communication => PathCategory::Communication,
        WorkClass::Memory => PathCategory::Memory,
        _ if kind == EventKind::Kernel => PathCategory::Compute,
        _ => PathCategory::Memory,
    }
}

/// Adds the edges into the nodes of all device work.
pub(super) fn bind(draft: &mut Draft, device: &DeviceWork, start: NodeId) {
    let usual = usual(draft, device);
    let mut waits = device.stream_waits.iter().peekable();
    let mut candidates = Vec::new();
    for (stream, first) in device.streams.iter().map(|range| (range.clone(), range.start)) {
        for at in stream {
            let work = &device.works[at];
            candidates.clear();
            if let Some(before) = before(device, first, at) {
                let source = device.works[before].leave;
                let kind = EdgeKind::StreamOrder;
                candidates.push(Candidate { source, kind, usual: usual.gap });
            }
            match work.launch {
                Some(source) => {
                    draft.evidence.launches += 1;
                    draft.evidence.early += u64::from(draft.end(source) > work.start);
                    let kind = EdgeKind::Launch;
                    candidates.push(Candidate { source, kind, usual: usual.launch_delay });
                }
                None => draft.evidence.orphans += 1,
            }
            while let Some((_, awaited)) = waits.next_if(|(waiting, _)| *waiting as usize == at) {
                let source = device.works[*awaited as usize].leave;
                let kind = EdgeKind::Synchronization;
                candidates.push(Candidate { source, kind, usual: 0 });
            }
            let kind = EdgeKind::StreamOrder;
            draft.bind(work.enter, &candidates, Candidate { source: start, kind, usual: 0 });
        }
    }
}

/// Returns the work that a given work follows on its stream. Parallel branches of a graph overlap
/// on one stream, so this is the nearest earlier work that had ended, or the previous work if none
/// nearby had ended.
fn before(device: &DeviceWork, first: usize, at: usize) -> Option<usize> {
    const NEARBY: usize = 16;
    let start = device.works[at].start;
    let nearest = (first..at).rev().take(NEARBY).find(|other| device.works[*other].end <= start);
    nearest.or((at > first).then(|| at - 1))
}

/// Usual delays before device work, which are assumed for work without a known predecessor.
struct UsualDelays {
    /// Usual delay after a launch on an idle stream.
    launch_delay: i64,
    /// Usual delay after the previous work on a stream with queued work.
    gap: i64,
}

/// Returns the median delays of the device work in the window. Work that waited for another stream
/// does not count, and neither do launches that still ran when their work began.
fn usual(draft: &Draft, device: &DeviceWork) -> UsualDelays {
    let (mut delays, mut gaps) = (Vec::new(), Vec::new());
    let mut waits = device.stream_waits.iter().peekable();
    for stream in &device.streams {
        for at in stream.clone() {
            let work = &device.works[at];
            let mut ready = i64::MIN;
            while let Some((_, awaited)) = waits.next_if(|(waiting, _)| *waiting as usize == at) {
                ready = ready.max(device.works[*awaited as usize].end);
            }
            let before = if at > stream.start { device.works[at - 1].end } else { i64::MIN };
            let Some(launched) = work.launch.map(|launch| draft.end(launch)) else { continue };
            // This work waited for another stream, so its delay is not a usual one.
            if ready > launched.max(before) {
                continue;
            }
            if before > launched {
                gaps.push(work.start - before);
            } else if launched < work.start {
                delays.push(work.start - launched);
            }
        }
    }
    let median =
        |values: &mut [i64]| distribution::integer_median(values).map_or(0, |ns| ns.max(0));
    UsualDelays { launch_delay: median(&mut delays), gap: median(&mut gaps) }
}
