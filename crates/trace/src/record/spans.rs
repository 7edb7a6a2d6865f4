//! Records the spans of one rank, and returns them after the recording.

use schema::{Nanos, Op, Stage};

/// Facts about a run that a trace file states once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    pub rank: u32,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// How the ranks exchange data, written as `distributedInfo.backend`. The value is `threads`
    /// for ranks within one process.
    pub backend: String,
    /// Process id of the rank, which must not be 0 because the device's rows have process id 0.
    pub pid: u32,
    /// Id of the thread that runs the steps.
    pub main_tid: u64,
    pub host: String,
    /// Number of threads in the thread pool that computes.
    pub threads: usize,
    /// Description of the device, such as the processor's name.
    pub device: String,
    /// Unix time of the spans' zero in nanoseconds. All ranks must use the same zero, close to the
    /// start of the recording. Readers that store microseconds as `f64` are exact to the nanosecond
    /// only for a few weeks after the zero.
    pub base_time_ns: i64,
}

/// One operation, with times on the recording's clock: `start ≤ kernel_start ≤ kernel_end ≤ end`.
///
/// The main thread checks and splits the work from `start` to `kernel_start`. From `kernel_start`
/// to `kernel_end`, the thread pool computes or the ranks communicate. The main thread cleans up
/// until `end`. [`Op::InputWait`] has no kernel, so its two kernel times are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSpan {
    pub op: Op,
    /// The stage of the step that the operation belongs to, if it is known.
    pub stage: Option<Stage>,
    /// Time at which the main thread enters the operation.
    pub start: Nanos,
    /// Time at which the thread pool or the device starts to work.
    pub kernel_start: Nanos,
    /// Time at which the thread pool or the device is done, which may be later than `end` with an
    /// asynchronous device.
    pub kernel_end: Nanos,
    /// Time at which the main thread leaves the operation.
    pub end: Nanos,
}

impl OpSpan {
    /// Whether the thread pool or the device worked, which it does not while the host waits for
    /// input.
    #[must_use]
    pub fn has_kernel(&self) -> bool {
        !matches!(self.op, Op::InputWait { .. })
    }
}

/// Work of an exchange between ranks, beside the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeWork {
    /// Messages are under way, from the first one that this rank sent to the arrival of the last.
    Messages,
    /// The compute thread copies values to messages or from them.
    Copy,
}

/// A part of an exchange between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSpan {
    pub work: ExchangeWork,
    pub stage: Stage,
    pub start: Nanos,
    pub end: Nanos,
}

/// A recorded step, with its interval and the range of its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepSpan {
    pub number: u64,
    pub begin: Nanos,
    pub end: Nanos,
    /// Time during which the thread pool was busy.
    pub busy: Nanos,
    /// Index of the step's first operation among the recorder's spans.
    pub first_span: usize,
    pub end_span: usize,
}

/// Records the spans of one rank in the order in which they ran.
///
/// Spans are made disjoint as they arrive. A span starts no earlier than the previous one ended,
/// its kernel starts no earlier than the previous kernel ended, and each part lasts at least 1 ns.
/// The reason is that readers of trace files fail on empty and overlapping slices.
/// [`Recorder::moved_ns`] returns the sum of these changes. The sum is 0 for a nanosecond clock and
/// a sequential caller.
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
/// recorder.push(OpSpan { op, stage: None, start, kernel_start, kernel_end, end });
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
    exchanges: Vec<ExchangeSpan>,
    is_open: bool,
    cursor: Nanos,
    /// Time at which the last kernel ended.
    device: Nanos,
    moved_ns: i64,
    /// Id of the order that a file answers, which the file states.
    pub(super) trace_id: Option<String>,
}

impl Recorder {
    /// Creates a recorder without any steps.
    #[must_use]
    pub fn new(info: RunInfo) -> Self {
        Self {
            info,
            steps: Vec::with_capacity(64),
            spans: Vec::with_capacity(4096),
            exchanges: Vec::new(),
            is_open: false,
            cursor: Nanos(i64::MIN),
            device: Nanos(i64::MIN),
            moved_ns: 0,
            trace_id: None,
        }
    }

    /// Forgets all recorded steps.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.info.clone());
    }

    /// Begins step `step`. If the previous step is still open, the recorder ends it first.
    pub fn begin_step(&mut self, step: u64, at: Nanos) {
        if self.is_open {
            self.end_step(at);
        }
        // A step that began before the previous one ended would overlap it in the file.
        let begin = self.not_before(at, self.cursor);
        self.cursor = begin;
        let (first_span, end_span) = (self.spans.len(), self.spans.len());
        let (number, busy) = (step, Nanos(0));
        self.steps.push(StepSpan { number, begin, end: begin, busy, first_span, end_span });
        self.is_open = true;
    }

    /// Adds an operation to the open step.
    ///
    /// # Panics
    /// Panics if no step is open, because the row would not belong to a step.
    pub fn push(&mut self, span: OpSpan) {
        assert!(self.is_open, "trace: operation recorded outside a step");
        let start = self.not_before(span.start, self.cursor);
        let mut placed = OpSpan { start, kernel_start: start, kernel_end: start, ..span };
        let mut busy = 0;
        if span.has_kernel() {
            // A launch of at least 1 ns precedes the kernel, and the device runs one kernel at a
            // time.
            let free = Nanos(self.device.0.max(start.0 + 1));
            placed.kernel_start = self.not_before(span.kernel_start, free);
            placed.kernel_end = self.not_before(span.kernel_end, Nanos(placed.kernel_start.0 + 1));
            self.device = placed.kernel_end;
            // A kernel that ended after the call returned belongs to an asynchronous device. The
            // host's span may end before its kernel only on an asynchronous device.
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

    /// Shortens the kernel of the operation that was added last to a part of its time, if the
    /// operation belongs to `stage`.
    pub fn narrow_kernel(&mut self, stage: Stage, start: Nanos, end: Nanos) {
        let Some(span) = self.spans.last_mut().filter(|span| span.stage == Some(stage)) else {
            return;
        };
        let before = span.kernel_end.0 - span.kernel_start.0;
        let start = start.clamp(span.kernel_start, Nanos(span.kernel_end.0 - 1));
        let end = end.clamp(Nanos(start.0 + 1), span.kernel_end);
        (span.kernel_start, span.kernel_end, self.device) = (start, end, end);
        if let Some(step) = self.steps.last_mut() {
            step.busy.0 -= before - (end.0 - start.0);
        }
    }

    /// Adds a part of an exchange between ranks. It may overlap operations and other exchanges.
    pub fn push_exchange(&mut self, exchange: ExchangeSpan) {
        let end = exchange.end.max(Nanos(exchange.start.0 + 1));
        self.exchanges.push(ExchangeSpan { end, ..exchange });
    }

    /// Updates the operations of step `step` with sizes that become known only after the step. The
    /// times of the operations do not change. If the step was not recorded, nothing happens.
    pub fn complete(&mut self, step: u64, mut change: impl FnMut(&mut Op)) {
        let Some(found) = self.steps.iter().rev().find(|recorded| recorded.number == step) else {
            return;
        };
        for span in &mut self.spans[found.first_span..found.end_span] {
            change(&mut span.op);
        }
    }

    /// Ends the open step. If no step is open, nothing happens.
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

    /// Returns the sum of all changes to time stamps that keep spans disjoint, in nanoseconds.
    #[must_use]
    pub fn moved_ns(&self) -> i64 {
        self.moved_ns
    }

    /// Returns the numbers of the recorded steps in order. An open step is included once it has an
    /// operation.
    pub fn steps(&self) -> impl Iterator<Item = u64> + '_ {
        self.recorded().map(|step| step.number)
    }

    /// Returns the time during which the thread pool was busy in step `step`, which equals the sum
    /// of the step's kernel durations.
    #[must_use]
    pub fn busy(&self, step: u64) -> Option<Nanos> {
        self.recorded().find(|recorded| recorded.number == step).map(|recorded| recorded.busy)
    }

    /// Returns the operations of step `step` in the order in which they ran.
    #[must_use]
    pub fn spans(&self, step: u64) -> Option<&[OpSpan]> {
        let recorded = self.recorded().find(|recorded| recorded.number == step)?;
        Some(self.spans_of(recorded))
    }

    /// Returns the parts of exchanges between ranks, in the order in which the compute thread
    /// finished them.
    #[must_use]
    pub fn exchanges(&self) -> &[ExchangeSpan] {
        &self.exchanges
    }

    pub(crate) fn info(&self) -> &RunInfo {
        &self.info
    }

    pub(crate) fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_deref()
    }

    /// Returns all steps except an open step that has no operations yet.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = &StepSpan> + '_ {
        self.steps.iter().filter(|step| step.end > step.begin)
    }

    pub(crate) fn spans_of(&self, step: &StepSpan) -> &[OpSpan] {
        &self.spans[step.first_span..step.end_span]
    }

    /// Returns the later of `at` and `earliest`, and adds the difference to the sum of changes.
    fn not_before(&mut self, at: Nanos, earliest: Nanos) -> Nanos {
        if at < earliest {
            self.moved_ns = self.moved_ns.saturating_add(earliest.0.saturating_sub(at.0));
            return earliest;
        }
        at
    }
}
