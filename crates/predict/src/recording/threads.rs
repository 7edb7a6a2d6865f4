//! Writes the actions of each thread of a step: its events, the host time between them, its calls
//! with the work they launch and await, and its hand-offs to other threads.

use std::collections::{BTreeMap, BTreeSet};

use analyze::calls;
use analyze::tree::TreeThread;
use trace::store::{StringId, Strings, TrackId};

use super::reader::RankReader;
use super::recorded::{Caller, Place, RankTimes, TimeRange};
use super::sizes;
use super::structure::{HandOff, find_partners};
use super::thread_events::{self, ThreadEvent, ThreadEventKind};
use super::thread_sync::{self, ThreadJoin};
use crate::Error;
use crate::program::{
    Action, Call, Mark, MarkKind, Overhead, Rank, Returns, Segment, Thread, WorkKind,
};

/// Adds the threads of a rank's step to its program, and their recorded times to `recorded`.
pub(super) fn read(
    read: &RankReader<'_>,
    names: &mut Strings,
    work_of: &BTreeMap<u32, u32>,
    rank: &mut Rank,
    recorded: &mut RankTimes,
) -> Result<(), Error> {
    let trace = read.scope.trace;
    rank.step = names.intern(read.span.row.map_or("step", |row| trace.name(row)));
    let with_points =
        read.tree.threads.iter().map(|thread| (thread, thread_events::list_events(read, thread)));
    let threads: Vec<(&TreeThread, Vec<ThreadEvent>)> =
        with_points.filter(|(_, events)| !events.is_empty()).collect();
    let main = match read.span.row.map(|row| trace.slices.track[row as usize]) {
        Some(track) => threads.iter().position(|(thread, _)| thread.track == track),
        // Without a step mark, the step belongs to the thread that ends last.
        None => {
            let last = |at: &usize| threads[*at].1.last().map(|event| event.end);
            (0..threads.len()).max_by_key(last)
        }
    };
    let Some(main) = main else {
        return Err(Error::NoHostRows { rank: trace.rank });
    };
    rank.main = main;
    let is_inside = |row: &&u32| {
        let start = trace.slices.start(**row);
        (read.span.start..read.span.end).contains(&start) && sizes::is_operator(read.scope, **row)
    };
    let operators = read.tree.nodes.iter().filter(is_inside);
    recorded.operators.extend(operators.map(|row| names.intern(trace.name(*row))));
    let tracks: BTreeSet<TrackId> = threads.iter().map(|(thread, _)| thread.track).collect();
    let joins = |hand_off: &&HandOff| {
        let is_inside = read.span.start < hand_off.done && hand_off.done < read.span.end;
        is_inside && tracks.contains(&hand_off.from) && tracks.contains(&hand_off.to)
    };
    let known: Vec<HandOff> = read.waits.hand_offs.iter().filter(joins).copied().collect();
    let with_points: Vec<thread_sync::EventsOfThread<'_>> =
        threads.iter().map(|(thread, events)| (thread.track, events.as_slice())).collect();
    let hand_offs = thread_sync::find_hand_offs(&with_points, known);
    for (at, (thread, events)) in threads.iter().enumerate() {
        let mut writer = ThreadWriter {
            read,
            names: &mut *names,
            work_of,
            works: &rank.works,
            hand_offs: &hand_offs,
            track: thread.track,
            cursor: read.span.start,
            left: StringId::default(),
            operator: None,
            actions: Vec::new(),
            times: Vec::new(),
            places: Vec::new(),
            callers: Vec::new(),
        };
        writer.left = writer.names.intern("start");
        writer.thread(events, (at == main).then_some(read.span.end));
        let (actions, times, places) = (writer.actions, writer.times, writer.places);
        let callers = writer.callers;
        let track = &trace.tracks[thread.track.0 as usize];
        let number = |key: &trace::store::TrackKey| key.number().unwrap_or(-1);
        let (pid, tid) = (number(&track.pid), number(&track.tid));
        let (thread, thread_of) = (rank.threads.len(), thread);
        let place = |(row, first, last)| (row, Place::Actions { thread, first, last });
        recorded.rows.extend(places.into_iter().map(place));
        recorded.callers.extend(callers.into_iter().map(|(at, caller)| ((thread, at), caller)));
        recorded.events.push(count_events(read, thread_of, &times));
        rank.threads.push(Thread { pid, tid, actions });
        recorded.actions.push(times);
    }
    Ok(())
}

/// Counts the events of a thread that began during each of its consecutive actions.
fn count_events(read: &RankReader<'_>, thread: &TreeThread, times: &[(i64, i64)]) -> Vec<u32> {
    let mut counts = vec![0; times.len()];
    let starts = read.tree.rows_of(thread).iter().map(|row| read.scope.trace.slices.start(*row));
    let mut at = 0;
    for start in starts.map(|start| read.since(start)) {
        while times.get(at).is_some_and(|(_, to)| *to <= start) {
            at += 1;
        }
        if times.get(at).is_some_and(|(from, _)| *from <= start) {
            counts[at] += 1;
        }
    }
    counts
}

/// An operator whose runtime calls are being read.
struct OpenOperatorCalls {
    name: StringId,
    sizes: StringId,
    calls: usize,
    /// The copy that the operator's latest call launched, if it launched one.
    copy: Option<u32>,
    /// Index of the operator's first action in the list of its thread's actions.
    begin: usize,
}

/// The state of a thread while its actions are written.
struct ThreadWriter<'a, 'b> {
    read: &'a RankReader<'b>,
    names: &'a mut Strings,
    work_of: &'a BTreeMap<u32, u32>,
    works: &'a [crate::program::Work],
    hand_offs: &'a [ThreadJoin],
    track: TrackId,
    /// Time up to which the thread's actions are written.
    cursor: i64,
    /// Name of the row that ended or began last.
    left: StringId,
    operator: Option<OpenOperatorCalls>,
    actions: Vec<Action>,
    times: Vec<(i64, i64)>,
    /// Row, first action and last action of each call and operator.
    places: Vec<(u32, usize, usize)>,
    /// Position of each call among the actions, with its caller.
    callers: Vec<(usize, Caller)>,
}

impl ThreadWriter<'_, '_> {
    fn thread(&mut self, events: &[ThreadEvent], end: Option<i64>) {
        let (all, track) = (self.hand_offs, self.track);
        let from_here = (0u32..).zip(all).filter(|(_, hand_off)| hand_off.of.from == track);
        let mut signals = from_here.peekable();
        for event in events {
            while let Some((signal, hand_off)) =
                signals.next_if(|(_, hand_off)| hand_off.of.done <= self.cursor)
            {
                self.signal(signal, hand_off);
            }
            self.gap(event);
            self.event(event);
            self.cursor = self.cursor.max(event.end);
        }
        for (signal, hand_off) in signals {
            self.signal(signal, hand_off);
        }
        if let Some(end) = end.filter(|end| *end >= self.cursor) {
            let op = self.names.intern("end");
            let segment = Segment { overhead: Overhead::BetweenOps, op, detail: self.left };
            self.host(segment, (self.cursor, end), op);
        }
    }

    /// Releases another thread. If the other thread begins only after this signal, the time until
    /// then is preparation that no recorded row shows.
    fn signal(&mut self, signal: u32, hand_off: &ThreadJoin) {
        if let Some(begins) = hand_off.begins.filter(|begins| *begins > self.cursor) {
            let op = self.names.intern("hand over");
            let segment = Segment { overhead: Overhead::BetweenOps, op, detail: self.left };
            self.add(Action::Host(segment), (self.cursor, begins));
            self.cursor = begins;
        }
        self.add(Action::Signal(signal), (self.cursor, self.cursor));
    }

    /// Adds the host time between the latest action and an event.
    fn gap(&mut self, event: &ThreadEvent) {
        let until = event.start.max(self.cursor);
        let name = self.name(event);
        let overhead = match (&self.operator, event.kind) {
            (None, _) => Overhead::BetweenOps,
            (Some(open), ThreadEventKind::Call) if open.calls == 0 => Overhead::BeforeFirstLaunch,
            (Some(_), ThreadEventKind::Call) => Overhead::BetweenLaunches,
            (Some(open), _) if open.calls == 0 => Overhead::HostOnly,
            (Some(_), _) => Overhead::AfterLastLaunch,
        };
        let (op, detail) = match &self.operator {
            None => (name, self.left),
            Some(open) => (open.name, open.sizes),
        };
        if event.kind == ThreadEventKind::EndOperator {
            self.await_works(event.row, until);
        }
        self.host(Segment { overhead, op, detail }, (self.cursor, until), name);
    }

    /// Adds the wait of an operator for its own device work that none of its calls shows.
    fn await_works(&mut self, row: u32, until: i64) {
        let place = |row| self.work_of.get(&row).copied();
        let awaited: Vec<u32> =
            find_partners(&self.read.waits.of_host, row).filter_map(place).collect();
        let ends = find_partners(&self.read.waits.of_host, row);
        let ended = ends.map(|row| self.read.scope.trace.slices.end(row)).max();
        if let Some(ended) = ended.filter(|_| !awaited.is_empty()) {
            let ended = ended.clamp(self.cursor, until);
            self.add(Action::Wait(awaited), (self.cursor, ended));
            self.cursor = ended;
        }
    }

    /// Adds host time, or the wait for another thread if a hand-off ends it.
    fn host(&mut self, segment: Segment, (from, to): TimeRange, name: StringId) {
        let waits = |(_, hand_off): &(u32, &ThreadJoin)| {
            hand_off.of.to == self.track
                && (from..=to).contains(&hand_off.of.done)
                && hand_off.of.resumed >= to
        };
        let numbered = (0u32..).zip(self.hand_offs).filter(waits);
        match numbered.max_by_key(|(_, hand_off)| hand_off.of.done) {
            Some((signal, hand_off)) if from < to => {
                let (wakes, done) = match hand_off.begins {
                    Some(_) => (None, to),
                    None => (Some(name), hand_off.of.done),
                };
                self.add(Action::Await { signal, wakes }, (done, to));
            }
            _ => self.add(Action::Host(segment), (from, to)),
        }
        self.cursor = to;
    }

    fn event(&mut self, event: &ThreadEvent) {
        let name = self.name(event);
        let at = (self.cursor, self.cursor);
        match event.kind {
            ThreadEventKind::BeginLabel => {
                self.add(Action::Begin(Mark::new(name, MarkKind::Annotation)), at);
            }
            ThreadEventKind::BeginOperator => {
                self.add(Action::Begin(Mark::new(name, MarkKind::Operator)), at);
                let sizes = self.names.intern(self.read.size_text(event.row));
                let begin = self.actions.len() - 1;
                self.operator =
                    Some(OpenOperatorCalls { name, sizes, calls: 0, copy: None, begin });
            }
            ThreadEventKind::EndLabel => self.add(Action::End, at),
            ThreadEventKind::EndOperator => {
                self.add(Action::End, at);
                let begin = self.operator.take().map(|operator| operator.begin);
                let last = self.actions.len() - 1;
                self.places.extend(begin.map(|begin| (event.row, begin, last)));
            }
            ThreadEventKind::Call => self.call(event, name),
        }
        self.left = name;
    }

    fn call(&mut self, event: &ThreadEvent, name: StringId) {
        let place = |row: &u32| self.work_of.get(row).copied();
        let launched = self.read.scope.links().work(event.row).iter().filter_map(place);
        let launches: Vec<u32> = launched.collect();
        let does = calls::classify_call(self.names.get(name));
        let waits = find_partners(&self.read.waits.of_host, event.row);
        let mut awaits: Vec<u32> = waits.filter_map(|row| place(&row)).collect();
        let copies = |work: &u32| self.works[*work as usize].kind == WorkKind::Copy;
        let copy = launches.iter().copied().find(copies);
        if does == calls::CallKind::StreamSync {
            // A blocking copy is followed by a synchronization of its own stream, so the call waits
            // only for the copy.
            let copy = self.operator.as_ref().and_then(|operator| operator.copy);
            awaits = copy.map_or(awaits, |copy| vec![copy]);
        }
        let waits_for_own = copy.filter(|copy| awaits.contains(copy));
        let is_wait = !matches!(
            does,
            calls::CallKind::Plain | calls::CallKind::EventRecord | calls::CallKind::StreamWait
        );
        let (returns, room) = match waits_for_own {
            Some(copy) => {
                awaits = vec![copy];
                (Returns::AfterCopy, None)
            }
            None if is_wait && !awaits.is_empty() => (Returns::AfterAwaited, None),
            None => (Returns::AtOnce, std::mem::take(&mut awaits).first().copied()),
        };
        let detail = match &mut self.operator {
            Some(operator) => {
                operator.calls += 1;
                operator.copy = copy;
                operator.name
            }
            None => StringId::default(),
        };
        let cost = Segment { overhead: Overhead::RuntimeCall, op: name, detail };
        let call = Call { cost, launches, awaits, room, returns };
        self.places.push((event.row, self.actions.len(), self.actions.len()));
        let caller = self.caller(event.row);
        self.callers.extend(caller.map(|caller| (self.actions.len(), caller)));
        self.add(Action::Call(call), (self.cursor, event.end.max(self.cursor)));
    }

    fn caller(&mut self, call: u32) -> Option<Caller> {
        let row = sizes::caller(self.read.scope, self.read.tree, call)?;
        let sizes = self.names.intern(self.read.size_text(row));
        Some(Caller { row, name: self.names.intern(self.read.scope.trace.name(row)), sizes })
    }

    /// Returns the name of an event without its step number, so that equal names repeat in every
    /// step.
    fn name(&mut self, event: &ThreadEvent) -> StringId {
        let name = self.read.scope.trace.name(event.row);
        let end = name.find("ProfilerStep#").map_or(name.len(), |at| at + "ProfilerStep#".len());
        self.names.intern(&name[..end])
    }

    fn add(&mut self, action: Action, (from, to): TimeRange) {
        self.actions.push(action);
        self.times.push((self.read.since(from), self.read.since(to)));
    }
}
