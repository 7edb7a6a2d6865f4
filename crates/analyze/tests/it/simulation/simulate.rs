//! Runs a program on a machine, by an event simulation of threads, a bounded queue, streams and
//! collectives. The simulation shares no code with the analysis.

use super::program::{Instruction, Machine, Op, Program, STREAMS};

/// One row of a host thread in the trace.
#[derive(Clone, Debug)]
pub struct HostRow {
    pub thread: usize,
    pub what: Op,
    pub start: i64,
    pub end: i64,
    pub correlation: usize,
    /// Correlation id of the call that recorded the awaited event, for a wait for an event.
    pub recorded: Option<usize>,
    /// The stream that waits, or the stream that is waited for by its number.
    pub stream: Option<usize>,
    /// The stream on which the awaited event was recorded, for a wait for an event.
    pub awaited_stream: Option<usize>,
}

/// One row of a device in the trace.
#[derive(Clone, Debug)]
pub struct DeviceRow {
    pub what: Op,
    pub stream: usize,
    pub start: i64,
    pub end: i64,
    pub correlation: usize,
}

/// The rows of one rank, with times by the clock of its host.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub host: Vec<HostRow>,
    pub device: Vec<DeviceRow>,
}

impl Run {
    /// Returns the time from the first start to the last end of the rows in the trace.
    pub fn span(&self, skew_ns: i64) -> (i64, i64) {
        let host = self.host.iter().map(|row| (row.start, row.end));
        let device = self.device.iter().map(|row| (row.start + skew_ns, row.end + skew_ns));
        let all = host.chain(device);
        all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).expect("a program does something")
    }
}

/// A piece of work that was launched.
struct Work {
    rank: usize,
    op: Op,
    stream: usize,
    /// Time at which the launch reaches the device.
    ready: i64,
    before: Option<usize>,
    waits: Vec<usize>,
    ns: i64,
    start: Option<i64>,
    end: Option<i64>,
    correlation: usize,
}

struct Thread<'a> {
    rank: usize,
    number: usize,
    code: &'a [Instruction],
    at: usize,
    time: i64,
    is_blocked: bool,
    /// The place in the queue that the thread's current launch has taken, if it has taken one.
    place: Option<usize>,
}

/// A recorded event, with the work that it follows and the call that recorded it.
#[derive(Clone, Copy)]
struct Event {
    id: usize,
    stream: usize,
    work: Option<usize>,
    correlation: usize,
}

#[derive(Default)]
struct DeviceState {
    last: [Option<usize>; STREAMS],
    pending: [Vec<usize>; STREAMS],
    events: Vec<Event>,
    /// The work in each place of the queue; `None` until the launch is issued.
    queue: Vec<Option<usize>>,
}

struct Simulation<'a> {
    machine: &'a Machine,
    works: Vec<Work>,
    open: Vec<usize>,
    devices: Vec<DeviceState>,
    runs: Vec<Run>,
    next_correlation: usize,
}

/// Simulates a program and returns the rows of each rank.
pub fn run(program: &Program) -> Vec<Run> {
    let mut simulation = Simulation {
        machine: &program.machine,
        works: Vec::new(),
        open: Vec::new(),
        devices: program.ranks.iter().map(|_| DeviceState::default()).collect(),
        runs: vec![Run::default(); program.ranks.len()],
        next_correlation: 1,
    };
    let mut threads = Vec::new();
    for (rank, of_rank) in program.ranks.iter().enumerate() {
        for (number, code) in of_rank.threads.iter().enumerate() {
            let time = 1_000_000 + number as i64 * 20_000;
            threads.push(Thread {
                rank,
                number,
                code,
                at: 0,
                time,
                is_blocked: false,
                place: None,
            });
        }
    }
    loop {
        let runnable = threads.iter_mut().filter(|one| !one.is_blocked && one.at < one.code.len());
        let Some(thread) = runnable.min_by_key(|one| one.time) else { break };
        if simulation.step(thread) {
            thread.at += 1;
            thread.place = None;
            threads.iter_mut().for_each(|one| one.is_blocked = false);
        } else {
            thread.is_blocked = true;
        }
    }
    assert!(threads.iter().all(|one| one.at == one.code.len()), "the program waits for itself");
    for work in simulation.works {
        let (start, end) = (work.start.expect("started"), work.end.expect("ended"));
        let (what, stream, correlation) = (work.op, work.stream, work.correlation);
        simulation.runs[work.rank].device.push(DeviceRow { what, stream, start, end, correlation });
    }
    simulation.runs
}

/// Returns the mean, changed by a jitter of at most a fifth.
fn jittered(mean: i64, jitter: f64) -> i64 {
    (mean as f64 * (1.0 + 0.2 * jitter)) as i64
}

impl Simulation<'_> {
    /// Runs the next instruction of a thread, or returns `false` if the end of what it waits for is
    /// not yet known.
    fn step(&mut self, thread: &mut Thread<'_>) -> bool {
        let op = &thread.code[thread.at].op;
        let Some((end, awaited)) = self.end(thread) else { return false };
        let correlation = match thread.place {
            Some(place) => {
                self.works[self.devices[thread.rank].queue[place].expect("issued")].correlation
            }
            None => {
                self.next_correlation += 1;
                self.next_correlation - 1
            }
        };
        self.runs[thread.rank].host.push(HostRow {
            thread: thread.number,
            what: op.clone(),
            start: thread.time,
            end,
            correlation,
            recorded: awaited.map(|event| event.correlation),
            stream: match op {
                Op::StreamSync { stream } | Op::StreamWait { stream, .. } => Some(*stream),
                _ => None,
            },
            awaited_stream: awaited.map(|event| event.stream),
        });
        thread.time = end;
        true
    }

    /// Returns the time at which a thread's next instruction ends, and the event that it concerns.
    fn end(&mut self, thread: &mut Thread<'_>) -> Option<(i64, Option<Event>)> {
        let Instruction { op, jitter } = &thread.code[thread.at];
        let at_once = thread.time + jittered(self.machine.other_call_ns, *jitter);
        let mut awaited = None;
        let end = match op {
            Op::Host { ns, .. } => thread.time + ns,
            Op::Kernel { stream, ns, .. }
            | Op::CopyIn { stream, ns }
            | Op::Collective { stream, ns, .. } => self.launch(thread, *stream, *ns)?.0,
            Op::CopyOut { stream, ns } => self.copy_out(thread, *stream, *ns)?,
            Op::Record { event, stream } => {
                let device = &mut self.devices[thread.rank];
                let (id, stream, work) = (*event, *stream, device.last[*stream]);
                let correlation = self.next_correlation;
                device.events.push(Event { id, stream, work, correlation });
                at_once
            }
            Op::StreamWait { event, stream } => {
                let event = self.event(thread.rank, *event);
                awaited = Some(event);
                self.devices[thread.rank].pending[*stream].extend(event.work);
                at_once
            }
            Op::EventQuery => at_once,
            Op::EventSync { event } => {
                let event = self.event(thread.rank, *event);
                awaited = Some(event);
                self.returned(at_once, self.wait(event.work)?, *jitter)
            }
            Op::StreamSync { stream } => {
                let last = self.devices[thread.rank].last[*stream];
                self.returned(at_once, self.wait(last)?, *jitter)
            }
            Op::DeviceSync => {
                let last = self.devices[thread.rank].last.into_iter().flatten();
                self.returned(at_once, self.wait(last)?, *jitter)
            }
        };
        Some((end, awaited))
    }

    /// Returns the time at which a copy to pageable memory returns. The copy may take its place in
    /// the queue before that time is known.
    fn copy_out(&mut self, thread: &mut Thread<'_>, stream: usize, ns: i64) -> Option<i64> {
        let jitter = thread.code[thread.at].jitter;
        let queue = &self.devices[thread.rank].queue;
        let already = thread.place.and_then(|place| queue[place]);
        let (end, work) = match already {
            Some(work) => (self.works[work].ready, work),
            None => self.launch(thread, stream, ns)?,
        };
        let done = self.works[work].end?;
        Some(end.max(done + jittered(self.machine.sync_return_ns, jitter)))
    }

    fn event(&self, rank: usize, id: usize) -> Event {
        let events = self.devices[rank].events.iter().rev();
        *events.into_iter().find(|event| event.id == id).expect("events are recorded first")
    }

    /// Returns the time at which the last of some pieces of work ends, if it is known.
    fn wait(&self, works: impl IntoIterator<Item = usize>) -> Option<i64> {
        let ends = works.into_iter().map(|work| self.works[work].end);
        ends.collect::<Option<Vec<_>>>().map(|ends| ends.into_iter().max().unwrap_or(i64::MIN))
    }

    /// Returns the time at which a call returns that could have returned at `at_once` but had to
    /// wait until `done`.
    fn returned(&self, at_once: i64, done: i64, jitter: f64) -> i64 {
        let waited = done.saturating_add(jittered(self.machine.sync_return_ns, jitter));
        if done + 500 > at_once { waited.max(at_once) } else { at_once }
    }

    /// Launches the work of a thread and returns the end of the call and the work. The result is
    /// `None` while the queue is full and it is unknown until when.
    fn launch(&mut self, thread: &mut Thread<'_>, stream: usize, ns: i64) -> Option<(i64, usize)> {
        let Instruction { op, jitter } = &thread.code[thread.at];
        let device = &mut self.devices[thread.rank];
        let place = *thread.place.get_or_insert_with(|| {
            device.queue.push(None);
            device.queue.len() - 1
        });
        let call = jittered(self.machine.launch_call_ns, *jitter);
        let mut issued = thread.time + call * 6 / 10;
        if let Some(oldest) = place.checked_sub(self.machine.queue_depth) {
            // The queue frees its places in the order of the launches.
            let free = self.freed(thread.rank, oldest)?;
            if free > issued {
                let woken = (oldest + self.machine.wake_batch - 1).min(place - 1);
                issued = self.freed(thread.rank, woken)? + self.machine.wake_ns;
            }
        }
        let device = &mut self.devices[thread.rank];
        let work = self.works.len();
        self.works.push(Work {
            rank: thread.rank,
            op: op.clone(),
            stream,
            ready: issued + jittered(self.machine.launch_latency_ns, *jitter),
            before: device.last[stream],
            waits: std::mem::take(&mut device.pending[stream]),
            ns: if ns == 0 { 0 } else { ns.max(100) },
            start: None,
            end: None,
            correlation: self.next_correlation,
        });
        self.next_correlation += 1;
        device.last[stream] = Some(work);
        device.queue[place] = Some(work);
        self.open.push(work);
        self.resolve();
        Some((issued + call * 4 / 10, work))
    }

    /// Returns the time at which all work up to a place of the queue has ended.
    fn freed(&self, rank: usize, place: usize) -> Option<i64> {
        let queue = &self.devices[rank].queue[..=place];
        // Work further back was already awaited by earlier launches, so only the last few places
        // decide.
        let ends = queue.iter().rev().take(64).map(|work| self.works[(*work)?].end);
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Computes the starts and ends of all work for which enough is known.
    fn resolve(&mut self) {
        loop {
            let before = self.open.len();
            for at in self.open.clone() {
                if self.works[at].start.is_none() {
                    self.works[at].start = self.start(at);
                }
                let work = &self.works[at];
                let Some(start) = work.start else { continue };
                let end = match work.op {
                    Op::Collective { id, .. } => self.meeting(id).map(|met| met + work.ns),
                    _ => Some(start + work.ns),
                };
                self.works[at].end = end;
            }
            let works = &self.works;
            self.open.retain(|work| works[*work].end.is_none());
            if self.open.len() == before {
                return;
            }
        }
    }

    fn start(&self, at: usize) -> Option<i64> {
        let work = &self.works[at];
        let end = |work: &usize| self.works[*work].end;
        let before = work.before.iter().map(|before| Some(end(before)? + self.machine.gap_ns));
        let waits = work.waits.iter().map(|wait| Some(end(wait)? + self.machine.gap_ns));
        let all = before.chain(waits).collect::<Option<Vec<i64>>>()?;
        all.into_iter().chain([work.ready]).max()
    }

    /// Returns the time at which the last rank arrives at a collective, if it is known.
    fn meeting(&self, id: usize) -> Option<i64> {
        let is_it =
            |work: &&Work| matches!(work.op, Op::Collective { id: other, .. } if other == id);
        let arrivals: Option<Vec<i64>> =
            self.works.iter().filter(is_it).map(|work| work.start).collect();
        let arrivals = arrivals?;
        (arrivals.len() == self.devices.len()).then(|| arrivals.into_iter().max())?
    }
}
