//! Adds the nodes of host threads, one for each stretch in which a single operator or call was the
//! innermost.

use trace::store::{EventKind, TrackId};

use super::device::DeviceWork;
use super::draft::{Candidate, Draft, DraftNode, NodeOrder};
use super::label::{NodeOrigin, PathCategory, ThreadLabel, call_kind};
use super::segment::{Segments, ThreadSegment};
use super::wait::{ThreadOrder, Waits};
use crate::facts::back_pressure::Pressure;
use crate::facts::calls;
use crate::facts::scope::Scope;
use crate::facts::tree::{self, OperatorTree, TreeThread};
use crate::graph::{EdgeKind, NodeId, NodeKind};

/// The nodes of one thread, in order of time.
#[derive(Debug)]
pub(super) struct Chain {
    pub track: TrackId,
    pub steps: Vec<ThreadNode>,
    /// Whether the thread ran operators or launched work.
    pub works: bool,
    pub hand_offs: Vec<HandOff>,
}

/// One node of a host thread, with what the thread waited for before it.
#[derive(Debug)]
pub(super) struct ThreadNode {
    pub node: NodeId,
    /// Time at which the thread reached this node, which is before the node's start if the thread
    /// waited for a device.
    pub entry: i64,
    /// Device work that the thread waited for in this node.
    pub awaited: Vec<u32>,
    /// The work that must end before the queue has room for the work that this node launches.
    pub makes_room: Option<u32>,
}

/// A node of another thread that this thread waited for.
#[derive(Debug)]
pub(super) struct HandOff {
    pub step: usize,
    pub source: NodeId,
    /// Time that the other thread worked during the pause of this one.
    pub worked: i64,
}

/// The part of a rank's graph that is under construction while the rank's threads are added.
pub(super) struct RankDraft<'a, 'b> {
    pub at: u32,
    pub scope: &'a Scope<'b>,
    pub waits: &'a Waits<'a, 'b>,
    pub pressure: &'a Pressure,
    pub device: &'a mut DeviceWork,
}

/// A row that is still open while a thread is cut into segments.
struct OpenSegment {
    row: u32,
    end: i64,
    is_label: bool,
}

/// Cuts the time of a thread into segments in which one row was the innermost. Calls are split only
/// if they launch nothing themselves and contain a call that waits. Annotations give no segments,
/// because they are only labels.
pub(super) fn segments(scope: &Scope<'_>, tree: &OperatorTree, thread: &TreeThread) -> Segments {
    let trace = scope.trace;
    let rows = tree.rows_of(thread);
    let mut cut = SegmentCutter { scope, found: Segments::default(), from: i64::MIN };
    let mut open: Vec<OpenSegment> = Vec::new();
    let waits =
        |row: &u32| trace.kind(*row).is_call() && calls::classify_call(trace.name(*row)).waits();
    let mut at = 0;
    while at < rows.len() {
        let row = rows[at];
        let parent = tree.parent(row);
        while let Some(top) = open.pop_if(|top| Some(top.row) != parent) {
            cut.add(&top, top.end);
        }
        let start = trace.slices.start(row);
        if let Some(top) = open.last() {
            cut.add(top, start);
        }
        cut.from = cut.from.max(start);
        let end = tree.end(row).unwrap_or(start);
        let one = OpenSegment { row, end, is_label: is_label(scope, row) };
        let inside = tree.subtree(row);
        // A launch must stay one node, because its work is linked to the call as a whole.
        let is_whole = trace.kind(row).is_call()
            && (!scope.links().work(row).is_empty() || !inside.iter().skip(1).any(waits));
        if is_whole {
            cut.add_call(row, end);
            at += inside.len();
        } else {
            open.push(one);
            at += 1;
        }
    }
    while let Some(top) = open.pop() {
        cut.add(&top, top.end);
    }
    cut.found
}

fn is_label(scope: &Scope<'_>, row: u32) -> bool {
    tree::is_label(scope.trace, row) && !tree::is_data_loading(scope.trace.name(row))
}

/// Cuts a thread's nested rows into segments that do not overlap. `from` is the end of the last
/// segment that was added.
struct SegmentCutter<'a, 'b> {
    scope: &'a Scope<'b>,
    found: Segments,
    from: i64,
}

impl SegmentCutter<'_, '_> {
    /// Adds an open row's time up to `end` as a segment, unless that time is empty.
    fn add(&mut self, open: &OpenSegment, end: i64) {
        let window = &self.scope.window;
        let (start, end) = (self.from.max(window.start), end.min(window.end));
        if start < end {
            let row = open.row;
            if open.is_label {
                self.found.labels.push(ThreadLabel { start, end, row });
            } else {
                self.found.work.push(ThreadSegment { row, start, end });
            }
        }
        self.from = self.from.max(end);
    }

    /// Adds a segment for a call, even if the call takes no time, because it may have launched
    /// something.
    fn add_call(&mut self, row: u32, end: i64) {
        let window = &self.scope.window;
        let (start, last) = (self.from.max(window.start), end.min(window.end));
        if start <= last && start < window.end {
            self.found.work.push(ThreadSegment { row, start, end: last });
        } else if end <= window.start {
            let start = self.scope.trace.slices.start(row);
            self.found.earlier.push(ThreadSegment { row, start, end });
        }
        self.from = self.from.max(end);
    }
}

/// Adds the nodes of one host thread, which are its operators and calls in order of time.
pub(super) fn chain(
    draft: &mut Draft,
    rank: &mut RankDraft<'_, '_>,
    track: TrackId,
    Segments { work: segments, earlier, .. }: &Segments,
) -> Chain {
    let mut steps = Vec::with_capacity(segments.len());
    let mut order = ThreadOrder::default();
    // Events recorded and waits requested before the window may still hold up work inside it.
    for call in earlier {
        let works = works(rank, call.row);
        let does = rank.waits.call(call.row);
        rank.waits.note(&mut order, call, does, &works, rank.device, &mut draft.evidence);
    }
    let mut launched: &[u32] = &[];
    for segment in segments {
        if rank.scope.trace.kind(segment.row).is_call() {
            launched = rank.scope.links().work(segment.row);
            add_call(draft, rank, &mut order, segment, &mut steps);
        } else {
            let awaited = rank.waits.find_pool_work(segment, launched, rank.device);
            add_step(draft, rank, &mut steps, segment, NodeKind::HostWork, awaited);
        }
    }
    let is_work = |segment: &ThreadSegment| {
        let is_call = rank.scope.trace.kind(segment.row).is_call();
        !is_call || !rank.scope.links().work(segment.row).is_empty()
    };
    let works = segments.iter().any(is_work);
    Chain { track, steps, works, hand_offs: Vec::new() }
}

/// Returns the device work that a call launched, as indices of pieces of work.
fn works(rank: &RankDraft<'_, '_>, call: u32) -> Vec<u32> {
    let rows = rank.scope.links().work(call).iter();
    rows.filter_map(|row| rank.device.work(*row)).collect()
}

/// Adds the nodes of a call: one up to the start of the work that it launched, if that work began
/// inside the call, and one for the rest of the call.
fn add_call(
    draft: &mut Draft,
    rank: &mut RankDraft<'_, '_>,
    order: &mut ThreadOrder,
    segment: &ThreadSegment,
    steps: &mut Vec<ThreadNode>,
) {
    let call = rank.waits.call(segment.row);
    let works = works(rank, segment.row);
    let kind = call_kind(!works.is_empty());
    rank.waits.note(order, segment, call, &works, rank.device, &mut draft.evidence);
    let is_inside = |at: &i64| (segment.start..segment.end).contains(at);
    let begins = works.iter().map(|work| rank.device.works[*work as usize].start);
    let split = begins.filter(is_inside).min();
    let mut awaited =
        rank.waits.find_awaited_work(segment, call, &works, rank.device, &mut draft.evidence);
    let mut launch = None;
    let mut rest = *segment;
    if let Some(split) = split {
        // A blocking copy may itself have waited for earlier work. A call whose copy waited spent
        // no time of its own before the copy.
        let is_held_up = match awaited.first() {
            Some(copy) => rank.waits.hold_up(segment, *copy, rank.device, &mut draft.evidence),
            None => false,
        };
        let end = if is_held_up { segment.start } else { split };
        let before = ThreadSegment { end, ..*segment };
        launch = Some(add_step(draft, rank, steps, &before, kind, Vec::new()));
        rest.start = end;
    }
    let held_up = held_up(rank, segment, &rest, &awaited);
    if let Some(HeldUp { work, begin, .. }) = held_up {
        // The call is assumed to take its usual time until it finds the queue full.
        let before = ThreadSegment { end: begin, ..*segment };
        add_step(draft, rank, steps, &before, kind, Vec::new());
        rest.start = begin;
        awaited = vec![work];
        draft.evidence.queue_waits += 1;
    }
    let last = add_step(draft, rank, steps, &rest, kind, awaited);
    if let Some(HeldUp { resume, .. }) = held_up {
        // The time to wake up after the wait counts as part of the wait.
        let start = &mut draft.times.start[last.index()];
        *start = (*start).max(resume);
    }
    if let (Some(step), Some(first)) = (steps.last_mut(), works.first()) {
        let row = rank.device.works[*first as usize].row;
        let device = rank.scope.trace.device(row);
        step.makes_room = rank.pressure.held_by(device, row).and_then(|row| rank.device.work(row));
        draft.evidence.queue_limited += u64::from(step.makes_room.is_some());
    }
    for work in works {
        let work = &mut rank.device.works[work as usize];
        let is_behind = work.start >= segment.end || launch.is_none();
        work.launch = if is_behind { Some(last) } else { launch };
    }
}

/// A launch call that found the queue full and waited for room.
#[derive(Clone, Copy)]
struct HeldUp {
    /// The work whose end gave the queue room.
    work: u32,
    /// Time at which the launch call found the queue full.
    begin: i64,
    /// Latest time at which the launch call continued.
    resume: i64,
}

fn held_up(
    rank: &RankDraft<'_, '_>,
    segment: &ThreadSegment,
    rest: &ThreadSegment,
    awaited: &[u32],
) -> Option<HeldUp> {
    if !awaited.is_empty() || rest.start > segment.start {
        return None;
    }
    let wait = rank.pressure.wait(segment.row)?;
    let work = rank.device.work(wait.work)?;
    let ended = rank.device.works[work as usize].end;
    let is_inside = segment.start < ended && ended <= segment.end;
    let rest = wait.typical_ns - (segment.end - ended);
    let begin = (segment.start + rest.max(0)).min(ended);
    is_inside.then_some(HeldUp { work, begin, resume: segment.end - wait.typical_ns })
}

/// Adds a node that begins at the time at which the thread stopped waiting.
fn add_step(
    draft: &mut Draft,
    rank: &RankDraft<'_, '_>,
    steps: &mut Vec<ThreadNode>,
    segment: &ThreadSegment,
    kind: NodeKind,
    awaited: Vec<u32>,
) -> NodeId {
    let trace = rank.scope.trace;
    let entry = segment.start;
    let ended = awaited.iter().map(|work| rank.device.works[*work as usize].end).max();
    // The node begins when the awaited work ended. Before that, the thread only waits.
    let start = ended.map_or(entry, |ended| ended.clamp(entry, segment.end));
    let category = match trace.kind(segment.row) {
        EventKind::Runtime | EventKind::Driver if start > entry => {
            PathCategory::SynchronizationReturn
        }
        EventKind::Runtime | EventKind::Driver => PathCategory::RuntimeCall,
        _ if rank.waits.is_loading(segment.row) => PathCategory::DataLoading,
        _ if start > entry => PathCategory::SynchronizationReturn,
        _ => PathCategory::HostOperator,
    };
    let track = Some(trace.slices.track[segment.row as usize]);
    let origin = NodeOrigin { scope: rank.at, row: Some(segment.row), track, category };
    let (end, order) = (segment.end, NodeOrder::Host);
    let node = draft.add(DraftNode { kind, start, end, order, origin });
    steps.push(ThreadNode { node, entry, awaited, makes_room: None });
    node
}

/// Adds the edges into the nodes of a thread.
pub(super) fn bind(draft: &mut Draft, chain: &Chain, start: NodeId, device: &DeviceWork) {
    let mut before = start;
    let mut hand_offs = chain.hand_offs.iter().peekable();
    let mut candidates = Vec::new();
    for (at, step) in chain.steps.iter().enumerate() {
        candidates.clear();
        let pause = step.entry - draft.end(before);
        let kind = EdgeKind::ProgramOrder;
        // The pause before a node is its usual wait, unless another thread's work explains a part
        // of it.
        let mut program = Candidate { source: before, kind, usual: pause };
        while let Some(hand_off) = hand_offs.next_if(|hand_off| hand_off.step == at) {
            let HandOff { source, worked, .. } = *hand_off;
            let usual = (step.entry - draft.end(source)).max(0);
            candidates.push(Candidate { source, kind: EdgeKind::Data, usual });
            program.usual = program.usual.min(pause - worked).max(0);
        }
        candidates.insert(0, program);
        for awaited in &step.awaited {
            let source = device.works[*awaited as usize].leave;
            candidates.push(Candidate { source, kind: EdgeKind::Synchronization, usual: 0 });
        }
        if let Some(work) = step.makes_room.filter(|work| !step.awaited.contains(work)) {
            let source = device.works[work as usize].leave;
            candidates.push(Candidate { source, kind: EdgeKind::Synchronization, usual: 0 });
        }
        let otherwise = Candidate { source: start, kind, usual: 0 };
        draft.bind(step.node, &candidates, otherwise);
        before = step.node;
    }
}
