//! Adds the nodes of host threads, one for each stretch in which a single operator or call was the
//! innermost.

use trace::store::{EventKind, TrackId};

use super::device::DeviceWork;
use super::draft::{Candidate, Draft, DraftNode, NodeOrder};
use super::label::{NodeOrigin, PathCategory, ThreadLabel, call_kind};
use super::segment::ThreadSegment;
use super::wait::{ThreadOrder, Waits};
use crate::facts::back_pressure::Pressure;
use crate::facts::calls;
use crate::facts::scope::Scope;
use crate::facts::tree::{self, OperatorTree, TreeThread};
use crate::graph::{EdgeKind, NodeId, NodeKind};

/// The nodes of one thread, in order of time. Their ids are consecutive.
#[derive(Debug)]
pub(super) struct Chain {
    pub track: TrackId,
    first: u32,
    /// Time at which the thread reached each node, which is before the node's start if the thread
    /// waited for a device.
    entries: Vec<i64>,
    /// Sorted by step. Most nodes waited for no device and have no entry.
    waits: Vec<StepWait>,
    /// Whether the thread ran operators or launched work.
    pub works: bool,
    pub hand_offs: Vec<HandOff>,
}

/// The device work for which a thread waited in one of its nodes.
#[derive(Debug)]
struct StepWait {
    step: usize,
    awaited: Vec<u32>,
    /// The work that must end before the queue has room for the work that this node launches.
    makes_room: Option<u32>,
}

impl Chain {
    /// Returns the number of nodes. They are the steps `0..len` of the thread.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the node of a step.
    pub fn node(&self, step: usize) -> NodeId {
        NodeId(self.first + step as u32)
    }

    /// Iterates over the nodes in order of time.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (self.first..self.first + self.len() as u32).map(NodeId)
    }

    /// Iterates over the times at which the thread reached its steps.
    pub fn entries(&self) -> impl Iterator<Item = i64> {
        self.entries.iter().copied()
    }

    /// Returns the time at which the thread reached a step, or `None` behind the last one.
    pub fn entry(&self, step: usize) -> Option<i64> {
        self.entries.get(step).copied()
    }

    /// Returns the wait of the last step, so that it can be changed. If the step has none, an empty
    /// one is added first.
    fn last_wait(&mut self) -> &mut StepWait {
        let step = self.len() - 1;
        if self.waits.last().is_none_or(|wait| wait.step != step) {
            self.waits.push(StepWait { step, awaited: Vec::new(), makes_room: None });
        }
        let last = self.waits.len() - 1;
        &mut self.waits[last]
    }
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

/// Cuts the time of a thread into segments in which one row was the innermost, and adds a node for
/// each. Calls are split only if they launch nothing themselves and contain a call that waits.
/// Annotations give no nodes. They are the labels that are returned.
pub(super) fn add_segments(
    chain: &mut ChainDraft<'_, '_, '_>,
    tree: &OperatorTree,
    thread: &TreeThread,
) -> Vec<ThreadLabel> {
    let scope = chain.rank.scope;
    let trace = scope.trace;
    let rows = tree.rows_of(thread);
    let mut cut = SegmentCutter { scope, chain, labels: Vec::new(), from: i64::MIN };
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
    cut.labels
}

fn is_label(scope: &Scope<'_>, row: u32) -> bool {
    tree::is_label(scope.trace, row) && !tree::is_data_loading(scope.trace.name(row))
}

/// Cuts a thread's nested rows into segments that do not overlap. `from` is the end of the last
/// segment that was added.
struct SegmentCutter<'c, 'd, 'a, 'b> {
    scope: &'a Scope<'b>,
    chain: &'c mut ChainDraft<'d, 'a, 'b>,
    labels: Vec<ThreadLabel>,
    from: i64,
}

impl SegmentCutter<'_, '_, '_, '_> {
    /// Adds an open row's time up to `end` as a segment, unless that time is empty.
    fn add(&mut self, open: &OpenSegment, end: i64) {
        let window = &self.scope.window;
        let (start, end) = (self.from.max(window.start), end.min(window.end));
        if start < end {
            let row = open.row;
            if open.is_label {
                self.labels.push(ThreadLabel { start, end, row });
            } else {
                self.chain.add(&ThreadSegment { row, start, end });
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
            self.chain.add(&ThreadSegment { row, start, end: last });
        } else if end <= window.start {
            let start = self.scope.trace.slices.start(row);
            self.chain.note_earlier(&ThreadSegment { row, start, end });
        }
        self.from = self.from.max(end);
    }
}

/// The nodes of one host thread under construction, which are its operators and calls in order of
/// time.
pub(super) struct ChainDraft<'d, 'a, 'b> {
    draft: &'d mut Draft,
    rank: RankDraft<'a, 'b>,
    order: ThreadOrder,
    /// Device work of the call that was added last.
    launched: &'a [u32],
    chain: Chain,
}

impl<'d, 'a, 'b> ChainDraft<'d, 'a, 'b> {
    /// Creates the chain of a thread, without nodes. No other nodes may be added until
    /// [`Self::finish`].
    pub fn new(draft: &'d mut Draft, rank: RankDraft<'a, 'b>, track: TrackId) -> Self {
        let first = draft.len() as u32;
        let (entries, waits, hand_offs) = (Vec::new(), Vec::new(), Vec::new());
        let chain = Chain { track, first, entries, waits, works: false, hand_offs };
        Self { draft, rank, order: ThreadOrder::default(), launched: &[], chain }
    }

    /// Returns the chain with all nodes that were added.
    pub fn finish(self) -> Chain {
        self.chain
    }

    /// Notes a call that ended before the window. Events that it recorded and waits that it
    /// requested may still hold up work in the window.
    fn note_earlier(&mut self, call: &ThreadSegment) {
        let works = self.works(call.row);
        let does = self.rank.waits.call(call.row);
        let evidence = &mut self.draft.evidence;
        self.rank.waits.note(&mut self.order, call, does, &works, self.rank.device, evidence);
    }

    /// Adds the nodes of a segment, which begins where the one before it ended or later.
    pub fn add(&mut self, segment: &ThreadSegment) {
        let scope = self.rank.scope;
        if scope.trace.kind(segment.row).is_call() {
            self.launched = scope.links().work(segment.row);
            self.chain.works |= !self.launched.is_empty();
            self.add_call(segment);
        } else {
            self.chain.works = true;
            let awaited = self.rank.waits.find_pool_work(segment, self.launched, self.rank.device);
            self.add_step(segment, NodeKind::HostWork, awaited);
        }
    }

    /// Returns the device work that a call launched, as indices of pieces of work.
    fn works(&self, call: u32) -> Vec<u32> {
        let rows = self.rank.scope.links().work(call).iter();
        rows.filter_map(|row| self.rank.device.work(*row)).collect()
    }

    /// Adds the nodes of a call: one up to the start of the work that it launched, if that work
    /// began inside the call, and one for the rest of the call.
    fn add_call(&mut self, segment: &ThreadSegment) {
        let works = self.works(segment.row);
        let Self { draft, rank, order, .. } = self;
        let call = rank.waits.call(segment.row);
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
            // A blocking copy may itself have waited for earlier work. A call whose copy waited
            // spent no time of its own before the copy.
            let is_held_up = match awaited.first() {
                Some(copy) => rank.waits.hold_up(segment, *copy, rank.device, &mut draft.evidence),
                None => false,
            };
            let end = if is_held_up { segment.start } else { split };
            let before = ThreadSegment { end, ..*segment };
            launch = Some(self.add_step(&before, kind, Vec::new()));
            rest.start = end;
        }
        let held_up = held_up(&self.rank, segment, &rest, &awaited);
        if let Some(HeldUp { work, begin, .. }) = held_up {
            // The call is assumed to take its usual time until it finds the queue full.
            let before = ThreadSegment { end: begin, ..*segment };
            self.add_step(&before, kind, Vec::new());
            rest.start = begin;
            awaited = vec![work];
            self.draft.evidence.queue_waits += 1;
        }
        let last = self.add_step(&rest, kind, awaited);
        if let Some(HeldUp { resume, .. }) = held_up {
            // The time to wake up after the wait counts as part of the wait.
            let start = &mut self.draft.starts[last.index()];
            *start = (*start).max(resume);
        }
        self.connect(&works, segment.end, launch, last);
    }

    /// Connects device work with the call that launched it, whose last node is `last`. `launch` is
    /// its node before the start of the work, if it has one.
    fn connect(&mut self, works: &[u32], call_end: i64, launch: Option<NodeId>, last: NodeId) {
        let Self { draft, rank, chain, .. } = self;
        if let Some(first) = works.first() {
            let row = rank.device.works[*first as usize].row;
            let device = rank.scope.trace.device(row);
            let held_by = rank.pressure.held_by(device, row);
            if let Some(work) = held_by.and_then(|row| rank.device.work(row)) {
                chain.last_wait().makes_room = Some(work);
                draft.evidence.queue_limited += 1;
            }
        }
        for work in works {
            let work = &mut rank.device.works[*work as usize];
            let is_behind = work.start >= call_end || launch.is_none();
            work.launch = if is_behind { Some(last) } else { launch };
        }
    }

    /// Adds a node that begins at the time at which the thread stopped waiting.
    fn add_step(&mut self, segment: &ThreadSegment, kind: NodeKind, awaited: Vec<u32>) -> NodeId {
        let Self { draft, rank, chain, .. } = self;
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
        let track = trace.slices.track[segment.row as usize];
        let origin = NodeOrigin::at_row(rank.at, segment.row, track, category);
        let (end, order) = (segment.end, NodeOrder::Host);
        let node = draft.add(DraftNode { kind, start, end, order, origin });
        debug_assert_eq!(node, chain.node(chain.len()), "ids of a chain are consecutive");
        chain.entries.push(entry);
        if !awaited.is_empty() {
            chain.last_wait().awaited = awaited;
        }
        node
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

/// Adds the edges into the nodes of a thread.
pub(super) fn bind(draft: &mut Draft, chain: &Chain, start: NodeId, device: &DeviceWork) {
    let mut before = start;
    let mut hand_offs = chain.hand_offs.iter().peekable();
    let mut waits = chain.waits.iter().peekable();
    let mut candidates = Vec::new();
    for ((step, node), entry) in chain.nodes().enumerate().zip(&chain.entries) {
        candidates.clear();
        let pause = entry - draft.end(before);
        let kind = EdgeKind::ProgramOrder;
        // The pause before a node is its usual wait, unless another thread's work explains a part
        // of it.
        let mut program = Candidate { source: before, kind, usual: pause };
        while let Some(hand_off) = hand_offs.next_if(|hand_off| hand_off.step == step) {
            let HandOff { source, worked, .. } = *hand_off;
            let usual = (entry - draft.end(source)).max(0);
            candidates.push(Candidate { source, kind: EdgeKind::Data, usual });
            program.usual = program.usual.min(pause - worked).max(0);
        }
        candidates.insert(0, program);
        if let Some(wait) = waits.next_if(|wait| wait.step == step) {
            let room = wait.makes_room.filter(|work| !wait.awaited.contains(work));
            for work in wait.awaited.iter().copied().chain(room) {
                let source = device.works[work as usize].leave;
                candidates.push(Candidate { source, kind: EdgeKind::Synchronization, usual: 0 });
            }
        }
        let otherwise = Candidate { source: start, kind, usual: 0 };
        draft.bind(node, &candidates, otherwise);
        before = node;
    }
}
