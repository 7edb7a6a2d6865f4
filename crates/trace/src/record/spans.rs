//! The spans of one rank while a run records them, and after.

use schema::{Nanos, Op};

/// Who ran, and where: what a trace says once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    pub rank: u32,
    /// Participants of the job.
    pub world_size: u32,
    /// How ranks exchange data, as `distributedInfo.backend`; `threads` for ranks within one
    /// process.
    pub backend: String,
    /// Process id; not 0, which is the device's row.
    pub pid: u32,
    /// Thread id of the thread that runs the steps.
    pub main_tid: u64,
    /// Name of the machine.
    pub host: String,
    /// Threads of the pool.
    pub threads: usize,
    /// The device in words, such as the processor's name.
    pub device: String,
    /// Unix time of the spans' zero. The same for all ranks, and close to the recording's start:
    /// readers that hold microseconds in `f64` stay exact to the nanosecond for weeks only.
    pub base_time_ns: i64,
}

/// One operation on the recording's clock: `start ≤ kernel_start ≤ kernel_end ≤ end`.
///
/// From `start` to `kernel_start` the main thread checks and splits the work, from `kernel_start`
/// to `kernel_end` the pool computes (or the ranks communicate), until `end` the main thread tidies
/// up. For [`Op::InputWait`] there is no kernel, and the two times are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSpan {
    /// What ran, with its shape.
    pub op: Op,
    /// The main thread enters the operation.
    pub start: Nanos,
    /// The pool, or the device, begins.
    pub kernel_start: Nanos,
    /// The pool is done; a device that works while the host goes on may be so after `end`.
    pub kernel_end: Nanos,
    /// The main thread leaves the operation.
    pub end: Nanos,
}

impl OpSpan {
    /// Whether the pool worked: waiting for input is the host's time, not the device's.
    #[must_use]
    pub fn has_kernel(&self) -> bool {
        !matches!(self.op, Op::InputWait { .. })
    }
}

/// A recorded step: an interval, and the operations within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepSpan {
    pub number: u64,
    pub begin: Nanos,
    pub end: Nanos,
    /// Time the pool was busy.
    pub busy: Nanos,
    /// The step's operations among the recorder's spans.
    pub first_span: usize,
    pub end_span: usize,
}

/// The spans of one rank, in the order in which they ran.
///
/// Spans are made disjoint as they arrive: a span begins no earlier than the one before ended, its
/// kernel no earlier than the one before, and each of its parts lasts at least 1 ns, because
/// readers of trace files fail on empty and overlapping slices. [`Recorder::moved_ns`] tells how
/// much that changed; it is 0 for a nanosecond clock and a sequential caller.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use trace::{Clock, OpSpan, Recorder, RunInfo};
///
/// let clock = Clock::start();
/// let mut recorder = Recorder::new(RunInfo {
///     rank: 0,
///     world_size: 1,
///     backend: "threads".to_owned(),
///     pid: std::process::id(),
///     main_tid: 1,
///     host: "mill".to_owned(),
///     threads: 8,
///     device: "CPU".to_owned(),
///     base_time_ns: clock.base_time_ns(),
/// });
/// recorder.begin_step(0, clock.now());
/// let (start, kernel_start) = (clock.now(), clock.now());
/// let (kernel_end, end) = (clock.now(), clock.now());
/// let op = schema::Op::Loss { batch_size: 64 };
/// recorder.push(OpSpan { op, start, kernel_start, kernel_end, end });
/// recorder.end_step(clock.now());
/// recorder.write_kineto(&folder.path().join("rank0.json"))?;
/// # Ok(())
/// # }
/// ```
///
/// # Cost
/// At most 100 bytes per operation, and one comparison per time stamp.
#[derive(Clone, Debug)]
pub struct Recorder {
    info: RunInfo,
    steps: Vec<StepSpan>,
    spans: Vec<OpSpan>,
    is_open: bool,
    cursor: Nanos,
    /// Where the last kernel ended.
    device: Nanos,
    moved_ns: i64,
}

impl Recorder {
    /// An empty recording.
    #[must_use]
    pub fn new(info: RunInfo) -> Self {
        Self {
            info,
            steps: Vec::with_capacity(64),
            spans: Vec::with_capacity(4096),
            is_open: false,
            cursor: Nanos(i64::MIN),
            device: Nanos(i64::MIN),
            moved_ns: 0,
        }
    }

    /// Begins step `step`; ends the one before, should it still be open.
    pub fn begin_step(&mut self, step: u64, at: Nanos) {
        if self.is_open {
            self.end_step(at);
        }
        let begin = self.not_before(at, self.cursor);
        self.cursor = begin;
        let (first_span, end_span) = (self.spans.len(), self.spans.len());
        let (number, busy) = (step, Nanos(0));
        self.steps.push(StepSpan { number, begin, end: begin, busy, first_span, end_span });
        self.is_open = true;
    }

    /// Adds an operation of the open step.
    ///
    /// # Panics
    /// If no step is open: that is the caller's bug, and the row would belong nowhere.
    pub fn push(&mut self, span: OpSpan) {
        assert!(self.is_open, "trace: operation recorded outside a step");
        let start = self.not_before(span.start, self.cursor);
        let mut placed = OpSpan { start, kernel_start: start, kernel_end: start, ..span };
        let mut busy = 0;
        if span.has_kernel() {
            let free = Nanos(self.device.0.max(start.0 + 1));
            placed.kernel_start = self.not_before(span.kernel_start, free);
            placed.kernel_end = self.not_before(span.kernel_end, Nanos(placed.kernel_start.0 + 1));
            self.device = placed.kernel_end;
            let is_waited_for = span.kernel_end <= span.end;
            let least = if is_waited_for { placed.kernel_end } else { Nanos(start.0 + 2) };
            placed.end = self.not_before(span.end, least);
            busy = placed.kernel_end.0 - placed.kernel_start.0;
        } else {
            placed.end = self.not_before(span.end, Nanos(start.0 + 1));
        }
        self.cursor = placed.end;
        self.spans.push(placed);
        if let Some(step) = self.steps.last_mut() {
            step.busy.0 += busy;
            step.end_span = self.spans.len();
            step.end = placed.end;
        }
    }

    /// Changes what the operations of step `step` say of themselves, if it was recorded: sizes that
    /// are known only after it. Their times stay.
    pub fn complete(&mut self, step: u64, mut change: impl FnMut(&mut Op)) {
        let Some(found) = self.steps.iter().rev().find(|recorded| recorded.number == step) else {
            return;
        };
        for span in &mut self.spans[found.first_span..found.end_span] {
            change(&mut span.op);
        }
    }

    /// Ends the open step, if there is one.
    pub fn end_step(&mut self, at: Nanos) {
        if !self.is_open {
            return;
        }
        self.is_open = false;
        let begin = self.steps.last().map_or(at, |step| step.begin);
        let end = self.not_before(at, Nanos(self.cursor.0.max(begin.0 + 1)));
        self.cursor = end;
        if let Some(step) = self.steps.last_mut() {
            step.end = end;
        }
    }

    /// Nanoseconds by which time stamps were moved to keep rows apart, summed over all stamps.
    #[must_use]
    pub fn moved_ns(&self) -> i64 {
        self.moved_ns
    }

    /// Numbers of the recorded steps, in order; an open step counts once it has an operation.
    pub fn steps(&self) -> impl Iterator<Item = u64> + '_ {
        self.recorded().map(|step| step.number)
    }

    /// Time the pool was busy in step `step`; the kernel rows of that step sum to it.
    #[must_use]
    pub fn busy(&self, step: u64) -> Option<Nanos> {
        self.recorded().find(|recorded| recorded.number == step).map(|recorded| recorded.busy)
    }

    /// The operations of step `step`, in the order in which they ran.
    #[must_use]
    pub fn spans(&self, step: u64) -> Option<&[OpSpan]> {
        let recorded = self.recorded().find(|recorded| recorded.number == step)?;
        Some(self.spans_of(recorded))
    }

    pub(crate) fn info(&self) -> &RunInfo {
        &self.info
    }

    /// The steps that have an interval: all but an open one without operations.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = &StepSpan> + '_ {
        self.steps.iter().filter(|step| step.end > step.begin)
    }

    pub(crate) fn spans_of(&self, step: &StepSpan) -> &[OpSpan] {
        &self.spans[step.first_span..step.end_span]
    }

    /// `at`, or `earliest` where that is later.
    fn not_before(&mut self, at: Nanos, earliest: Nanos) -> Nanos {
        if at < earliest {
            self.moved_ns = self.moved_ns.saturating_add(earliest.0.saturating_sub(at.0));
            return earliest;
        }
        at
    }
}
