//! Writes a rank's part of a program: its actions, works and dependencies.

use std::collections::BTreeMap;

use trace::store::{StringId, Strings};

use super::operator::{LaunchPredictor, OperatorCalls};
use super::order::{self, Item, ItemKind};
use super::scaled_calls::Scale;
use super::storage::{self, OpId, Storages};
use crate::calibration::Key;
use crate::calibration::launches::{ApiCall, LaunchedWork};
use crate::calibration::opaque::OPAQUE;
use crate::calibration::price::NESTED;
use crate::program::{
    Action, Call, Mark, MarkKind, Overhead, Rank, Segment, Stream, Thread, Work, WorkId, WorkKind,
};
use kernel_model::Estimate;

/// Number of calls of each operator that the calibration does not contain, by name.
pub type UnknownOperators = BTreeMap<String, u64>;

const STEP: &str = "ProfilerStep#";

/// A collective that a rank takes part in: its work, the name of the operation, and the message
/// bytes.
pub type Joined = (WorkId, String, u64);

/// One rank's part of a program, with its collectives and its unknown operators.
#[derive(Default)]
pub struct Written {
    pub rank: Rank,
    pub collectives: Vec<Joined>,
    pub unknown: UnknownOperators,
    /// Times of kernels by the key of their samples, if models price them.
    pub prices: BTreeMap<Key<WorkKind>, Estimate>,
}

/// Writes a rank's part of a program from the ordered items of its threads.
pub fn write(
    predictor: &LaunchPredictor<'_>,
    names: &mut Strings,
    threads: &[order::Thread],
    items: &[Item],
) -> Written {
    let mut writer = StepWriter {
        predictor,
        names,
        device: device(predictor),
        written: Written::default(),
        threads: Vec::new(),
        storages: Storages::default(),
        operators: Vec::new(),
        streams: BTreeMap::new(),
        signals: 0,
    };
    let start = writer.names.intern("start");
    for thread in threads {
        writer.threads.push(State {
            thread: *thread,
            left: start,
            actions: Vec::new(),
            seen: vec![0; threads.len()],
            done: 0,
            gap: None,
            stream: predictor.usual.stream,
            signals: Vec::new(),
        });
    }
    writer.step(items);
    writer.finish()
}

/// Returns the smallest device number that the trace of a rank mentions.
fn device(predictor: &LaunchPredictor<'_>) -> i32 {
    let texts = predictor.trace.strings.iter();
    let numbered = texts.filter_map(|text| {
        let (kind, number) = text.split_once(':')?;
        let is_device = matches!(kind, "cuda" | "hip" | "xpu" | "mtia" | "hpu" | "npu");
        number.parse().ok().filter(|_| is_device)
    });
    numbered.min().unwrap_or(0)
}

/// The state of a thread while its actions are written.
struct State {
    thread: order::Thread,
    /// Name of the operator or label that began or ended last.
    left: StringId,
    actions: Vec<Action>,
    /// For each thread, the number of its operators that are known to have ended before this thread
    /// continues.
    seen: Vec<usize>,
    done: usize,
    /// Signal to wait for in the next gap, and whether the thread begins with this wait.
    gap: Option<(u32, bool)>,
    /// The stream on which kernels of the thread currently run.
    stream: i32,
    /// Signals that the thread sends, each with the number of actions before it.
    signals: Vec<(usize, u32)>,
}

/// An operator whose actions were written, with its last work on each stream.
struct WrittenOperator {
    thread: usize,
    /// Position among the operators of its thread, counted from 0.
    number: usize,
    /// Number of actions of its thread when the operator ends.
    actions: usize,
    /// Last work of the operator on each stream.
    works: BTreeMap<u32, WorkId>,
}

/// A stream while work is added to it.
#[derive(Default)]
struct Queue {
    last: Option<WorkId>,
    /// For each other stream, the last of its works for which this stream has waited.
    awaited: BTreeMap<u32, WorkId>,
}

/// Writes the actions and works of one rank while visiting its items in order.
struct StepWriter<'a, 'b> {
    predictor: &'a LaunchPredictor<'b>,
    names: &'a mut Strings,
    device: i32,
    written: Written,
    threads: Vec<State>,
    storages: Storages,
    operators: Vec<WrittenOperator>,
    streams: BTreeMap<u32, Queue>,
    signals: u32,
}

impl StepWriter<'_, '_> {
    fn step(&mut self, items: &[Item]) {
        let step = self.names.intern(STEP);
        self.between(0, step);
        self.begin(0, step, MarkKind::Annotation);
        let ends = ends_of_threads(items, self.threads.len());
        for item in items {
            self.join(item, &ends);
            let at = item.node as usize;
            let name = self.predictor.trace.name(&self.predictor.trace.nodes[at]);
            // The number of the step is cut off, so that all steps share the samples of one name.
            let end = name.find(STEP).map_or(name.len(), |at| at + STEP.len());
            let name = self.names.intern(&name[..end]);
            match item.kind {
                ItemKind::Begin => {
                    self.between(item.thread, name);
                    self.begin(item.thread, name, MarkKind::Annotation);
                }
                ItemKind::End => {
                    self.between(item.thread, name);
                    self.end(item.thread, name);
                }
                ItemKind::Operator => self.operator(item, name),
            }
        }
        self.await_backward(0, u64::MAX, &ends);
        self.between(0, step);
        self.end(0, step);
        let end = self.names.intern("end");
        self.between(0, end);
    }

    /// Adds the waits of a thread for other threads before it starts or continues.
    fn join(&mut self, item: &Item, ends: &[u64]) {
        let thread = item.thread;
        let is_new = self.threads[thread].actions.is_empty();
        if is_new && self.threads[thread].thread.is_autograd {
            // Until the backward pass starts, the forward thread prepares its graph.
            let op = self.names.intern("hand over");
            let detail = self.threads[0].left;
            let segment = Segment { overhead: Overhead::BetweenOps, op, detail };
            self.threads[0].actions.push(Action::Host(segment));
            let signal = self.signal(0, self.threads[0].actions.len());
            self.threads[thread].gap = Some((signal, true));
            self.saw(thread, 0, self.threads[0].done);
        } else if !self.threads[thread].thread.is_autograd {
            self.await_backward(thread, item.key, ends);
        }
    }

    /// Makes a thread that called autograd wait for the end of the backward pass.
    fn await_backward(&mut self, thread: usize, key: u64, ends: &[u64]) {
        for (other, end) in ends.iter().enumerate() {
            let state = &self.threads[other];
            let is_over = state.thread.is_autograd && *end <= key && state.done > 0;
            if is_over && self.threads[thread].seen[other] < state.done {
                let (actions, done) = (state.actions.len(), state.done);
                self.threads[thread].gap = Some((self.signal(other, actions), false));
                self.saw(thread, other, done);
            }
        }
    }

    /// Returns the signal that a thread sends after a number of its actions. An existing signal at
    /// that position is reused.
    fn signal(&mut self, thread: usize, actions: usize) -> u32 {
        let signals = &mut self.threads[thread].signals;
        if let Some((_, known)) = signals.iter().find(|(at, _)| *at == actions) {
            return *known;
        }
        signals.push((actions, self.signals));
        self.signals += 1;
        self.signals - 1
    }

    /// Records that a thread waited for another thread. By this wait, the thread also waited for
    /// everything that the other thread had waited for.
    fn saw(&mut self, thread: usize, other: usize, done: usize) {
        let theirs = self.threads[other].seen.clone();
        let own = &mut self.threads[thread].seen;
        for (own, theirs) in own.iter_mut().zip(theirs) {
            *own = theirs.max(*own);
        }
        own[other] = own[other].max(done);
    }

    /// Adds the host time before the next mark of a thread, or a wait for another thread in its
    /// place.
    fn between(&mut self, thread: usize, next: StringId) {
        let state = &mut self.threads[thread];
        let segment = Segment { overhead: Overhead::BetweenOps, op: next, detail: state.left };
        state.actions.push(match state.gap.take() {
            Some((signal, begins)) => Action::Await { signal, wakes: (!begins).then_some(next) },
            None => Action::Host(segment),
        });
    }

    fn begin(&mut self, thread: usize, name: StringId, kind: MarkKind) {
        self.threads[thread].actions.push(Action::Begin(Mark::new(name, kind)));
        self.threads[thread].left = name;
    }

    fn end(&mut self, thread: usize, name: StringId) {
        self.threads[thread].actions.push(Action::End);
        self.threads[thread].left = name;
    }

    fn operator(&mut self, item: &Item, name: StringId) {
        let thread = item.thread;
        let after = self.depend(item);
        let mut done = self.predictor.predict_calls(item.node);
        self.written.prices.extend(done.prices.drain(..));
        if let Some(stream) = order::moved_to(self.predictor.trace, item.node) {
            let works = done.calls.iter_mut().flat_map(|(call, _)| &mut call.launches);
            works.for_each(|work| work.stream = stream);
        }
        let sizes = self.names.intern(&done.sizes);
        self.between(thread, name);
        self.begin(thread, name, MarkKind::Operator);
        let mut works = BTreeMap::new();
        let mut calls = 0;
        for (at, (called, scale)) in self.calls(&done).into_iter().enumerate() {
            let on = LaunchSite { thread, op: name, after: &after };
            if called.name.is_empty() {
                let awaited = self.last_of(&called.awaits);
                if !awaited.is_empty() {
                    self.threads[thread].actions.push(Action::Wait(awaited));
                }
                continue;
            }
            let overhead = match calls {
                0 => Overhead::BeforeFirstLaunch,
                _ => Overhead::BetweenLaunches,
            };
            self.host(thread, Segment { overhead, op: name, detail: sizes }, done.nested.get(at));
            self.call(&on, &called, scale, &mut works);
            calls += 1;
        }
        self.opaque_host(thread, &done);
        let overhead = if calls == 0 { Overhead::HostOnly } else { Overhead::AfterLastLaunch };
        self.host(thread, Segment { overhead, op: name, detail: sizes }, done.nested.last());
        self.end(thread, name);
        self.write(item, works);
    }

    /// Adds host time of an operator. Operators without samples are priced by the number of their
    /// nested operators.
    fn host(&mut self, thread: usize, segment: Segment, nested: Option<&u32>) {
        let is_known = self.predictor.knows(segment.overhead, self.names.get(segment.op));
        let detail = match nested {
            Some(nested) if !is_known => self.names.intern(&format!("{nested}{NESTED}")),
            _ => segment.detail,
        };
        self.threads[thread].actions.push(Action::Host(Segment { detail, ..segment }));
    }

    /// Returns the calls of an operator. An unknown operator launches a kernel that moves its
    /// bytes.
    fn calls(&mut self, done: &OperatorCalls) -> Vec<(ApiCall, Scale)> {
        let mut calls = done.calls.clone();
        for (name, moved) in &done.unknown {
            *self.written.unknown.entry(name.clone()).or_default() += 1;
            let Some(bytes) = moved.filter(|_| self.predictor.usual.has_device) else { continue };
            let work = LaunchedWork {
                kind: WorkKind::Kernel,
                name: OPAQUE.to_owned(),
                details: [(format!("{bytes} B"), 1)].into(),
                bytes: Some(bytes),
                stream: self.predictor.usual.stream,
                collective: None,
            };
            calls.push((ApiCall::launch(self.predictor.usual.call, work), Scale::ONE));
        }
        calls
    }

    /// Adds host time for unknown operators if the calibration contains no device work.
    fn opaque_host(&mut self, thread: usize, done: &OperatorCalls) {
        for (_, moved) in done.unknown.iter().filter(|_| !self.predictor.usual.has_device) {
            let Some(bytes) = moved else { continue };
            let op = self.names.intern(OPAQUE);
            let detail = self.names.intern(&format!("{bytes} B"));
            let segment = Segment { overhead: Overhead::HostOnly, op, detail };
            self.threads[thread].actions.push(Action::Host(segment));
        }
    }

    fn call(
        &mut self,
        on: &LaunchSite<'_>,
        called: &ApiCall,
        scale: Scale,
        works: &mut BTreeMap<u32, WorkId>,
    ) {
        let launches: Vec<WorkId> = called
            .launches
            .iter()
            .map(|work| {
                let id = self.launch(on, work, scale);
                works.insert(self.written.rank.works[id as usize].stream, id);
                id
            })
            .collect();
        let op = self.names.intern(&called.name);
        let cost = Segment { overhead: Overhead::RuntimeCall, op, detail: on.op };
        let awaits = self.last_of(&called.awaits);
        let returns = called.returns;
        let call = Call { cost, launches, awaits, room: None, returns };
        self.threads[on.thread].actions.push(Action::Call(call));
    }

    fn launch(&mut self, on: &LaunchSite<'_>, launched: &LaunchedWork, scale: Scale) -> WorkId {
        let id = self.written.rank.works.len() as WorkId;
        let stream = self.stream(launched.stream);
        let mut after = Vec::new();
        let mut needs: Vec<WorkId> = on.after.clone();
        if launched.collective.is_some() || launched.name.starts_with("nccl") {
            // A collective starts after the work that its thread has launched on its current
            // stream.
            let current = self.stream(self.threads[on.thread].stream);
            needs.extend(self.streams.get(&current).and_then(|queue| queue.last));
        } else {
            self.threads[on.thread].stream = launched.stream;
        }
        // Wait only for work that this stream has not already waited for, and only for the latest
        // work of each other stream.
        for need in needs {
            let other = self.written.rank.works[need as usize].stream;
            let queue = self.streams.entry(stream).or_default();
            let is_new = queue.awaited.get(&other).is_none_or(|awaited| *awaited < need);
            if other != stream && is_new {
                queue.awaited.insert(other, need);
                after.retain(|known: &WorkId| {
                    self.written.rank.works[*known as usize].stream != other
                });
                after.push(need);
            }
        }
        let behind = self.streams.entry(stream).or_default().last.replace(id);
        let total: u64 = launched.details.values().sum();
        let name = self.names.intern(&launched.name);
        let kind = launched.kind;
        let part = |(detail, count): (&String, &u64)| crate::program::Part {
            kind,
            name,
            detail: self.names.intern(detail),
            weight: *count as f64 / total.max(1) as f64,
        };
        let mut parts: Vec<_> = launched.details.iter().map(part).collect();
        let detail = parts.first().map_or_else(StringId::default, |part| part.detail);
        if parts.len() == 1 {
            parts.clear();
        }
        self.written.rank.works.push(Work {
            name,
            kind,
            stream,
            op: on.op,
            detail,
            bytes: launched.bytes,
            behind,
            after,
            parts,
            scale: scale.time,
            is_launched: true,
            ..Work::default()
        });
        if let Some((operation, bytes)) = &launched.collective {
            let bytes = (*bytes as f64 * scale.bytes).round() as u64;
            self.written.collectives.push((id, operation.clone(), bytes));
        }
        id
    }

    /// Returns the index of a stream, and adds the stream if it is new.
    fn stream(&mut self, number: i32) -> u32 {
        let streams = &mut self.written.rank.streams;
        let known = streams.iter().position(|stream| stream.number == number);
        let place = known.unwrap_or_else(|| {
            streams.push(Stream { device: self.device, number });
            streams.len() - 1
        });
        place as u32
    }

    /// Returns the last work on each of the given streams.
    fn last_of(&mut self, streams: &[i32]) -> Vec<WorkId> {
        let places: Vec<u32> = streams.iter().map(|number| self.stream(*number)).collect();
        let last = |place: &u32| self.streams.get(place).and_then(|queue| queue.last);
        places.iter().filter_map(last).collect()
    }

    /// Makes a thread wait for the operators of other threads that wrote inputs of this item.
    /// Returns the device works that wrote these inputs.
    fn depend(&mut self, item: &Item) -> Vec<WorkId> {
        let mut writers: Vec<OpId> = Vec::new();
        for at in self.predictor.inside(item.node) {
            let node = &self.predictor.trace.nodes[at as usize];
            for tensor in storage::read(node) {
                writers.extend(self.storages.writers(tensor));
            }
        }
        writers.sort_unstable();
        writers.dedup();
        let mut after: BTreeMap<u32, WorkId> = BTreeMap::new();
        let mut latest: BTreeMap<usize, OpId> = BTreeMap::new();
        for writer in writers {
            let operator = &self.operators[writer as usize];
            for (stream, work) in &operator.works {
                let last = after.entry(*stream).or_insert(*work);
                *last = (*last).max(*work);
            }
            if self.threads[item.thread].seen[operator.thread] <= operator.number {
                latest.insert(operator.thread, writer);
            }
        }
        latest.remove(&item.thread);
        for (thread, writer) in latest {
            let WrittenOperator { number, actions, .. } = self.operators[writer as usize];
            let signal = self.signal(thread, actions);
            let own = &mut self.threads[item.thread];
            // Only the last of several waits takes time, so the earlier ones name no work for a
            // hand-over.
            if let Some((signal, _)) = own.gap.replace((signal, false)) {
                own.actions.push(Action::Await { signal, wakes: None });
            }
            self.saw(item.thread, thread, number + 1);
        }
        after.into_values().collect()
    }

    /// Records an operator as the last writer of its outputs.
    fn write(&mut self, item: &Item, works: BTreeMap<u32, WorkId>) {
        let id = self.operators.len() as OpId;
        for at in self.predictor.inside(item.node) {
            let node = &self.predictor.trace.nodes[at as usize];
            for tensor in storage::written(self.predictor.trace, node) {
                self.storages.write(tensor, id);
            }
        }
        let state = &mut self.threads[item.thread];
        let (number, actions) = (state.done, state.actions.len());
        state.done += 1;
        self.operators.push(WrittenOperator { thread: item.thread, number, actions, works });
    }

    fn finish(mut self) -> Written {
        let pid = self.predictor.trace.pid.and_then(|pid| i64::try_from(pid).ok()).unwrap_or(1);
        let rank = &mut self.written.rank;
        rank.step = self.names.intern("ProfilerStep#0");
        for state in self.threads {
            let tid = i64::try_from(state.thread.number).unwrap_or(-1);
            let actions = with_signals(state.actions, state.signals);
            rank.threads.push(Thread { pid, tid, actions });
        }
        self.written
    }
}

/// The place from which work is launched: its thread, its operator and its dependencies.
struct LaunchSite<'a> {
    thread: usize,
    op: StringId,
    after: &'a Vec<WorkId>,
}

/// Returns the largest key of each thread's items.
fn ends_of_threads(items: &[Item], threads: usize) -> Vec<u64> {
    let mut ends = vec![0; threads];
    for item in items {
        ends[item.thread] = item.key.max(ends[item.thread]);
    }
    ends
}

/// Inserts each signal after the actions that it follows.
fn with_signals(actions: Vec<Action>, mut signals: Vec<(usize, u32)>) -> Vec<Action> {
    signals.sort_unstable();
    let mut signals = signals.into_iter().peekable();
    let mut all = Vec::with_capacity(actions.len());
    for (at, action) in actions.into_iter().enumerate() {
        while let Some((_, signal)) = signals.next_if(|(after, _)| *after <= at) {
            all.push(Action::Signal(signal));
        }
        all.push(action);
    }
    all.extend(signals.map(|(_, signal)| Action::Signal(signal)));
    all
}
