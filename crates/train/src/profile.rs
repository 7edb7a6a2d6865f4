//! Times the operations of a step while a trace is being taken.
//!
//! Without a trace, an operation costs one extra branch. Spans go to `trace::record`, which owns
//! the file format.

use std::time::Instant;

use device::Error;
use device::backend::QueueMoments;
use schema::stage::{ActionPart, Resource};
use schema::{Nanos, Op, Stage};
use trace::{Clock, ExchangeSpan, ExchangeWork, OpSpan, Recorder};

use crate::lane::ExchangeWait;

/// An action of a step, with the interval in which the compute thread carried it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedAction {
    pub stage: Stage,
    pub part: ActionPart,
    pub began: Instant,
    pub ended: Instant,
}

/// Records one span per operation, for the steps between [`Self::begin_step`] and
/// [`Self::end_step`].
pub struct Profiler {
    clock: Clock,
    recorder: Option<Recorder>,
    recording: bool,
    /// The stage to which operations belong.
    stage: Option<Stage>,
    device: Option<DeviceTimes>,
}

/// Times of an asynchronous device, which reports kernel times only at the end of a step.
struct DeviceTimes {
    moments: QueueMoments,
    /// Host time at which `moments` begins.
    begin: Nanos,
    /// Operations of the open step in submission order, with the host's start and end times.
    pending: Vec<(Op, Option<Stage>, [Nanos; 2])>,
    error: Option<Error>,
}

impl Profiler {
    /// Creates a profiler that never records.
    #[must_use]
    pub fn off() -> Self {
        Self { clock: Clock::start(), recorder: None, recording: false, stage: None, device: None }
    }

    /// Creates a profiler that records into `recorder`, with times of `clock`.
    #[must_use]
    pub fn new(recorder: Recorder, clock: Clock) -> Self {
        Self { clock, recorder: Some(recorder), recording: false, stage: None, device: None }
    }

    /// Returns whether this profiler has a recorder.
    pub(crate) fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Makes the profiler use kernel times measured by the device.
    pub(crate) fn with_moments(self, moments: Option<QueueMoments>) -> Self {
        let times =
            |moments| DeviceTimes { moments, begin: Nanos(0), pending: Vec::new(), error: None };
        Self { device: moments.map(times), ..self }
    }

    /// Starts recording `step`, if there is a recorder.
    pub fn begin_step(&mut self, step: u64) {
        let now = self.clock.now();
        let Some(recorder) = &mut self.recorder else { return };
        recorder.begin_step(step, now);
        self.recording = true;
        if let Some(device) = &mut self.device {
            device.keep(QueueMoments::begin);
            device.begin = self.clock.now();
        }
    }

    /// Ends the step that was begun last.
    ///
    /// # Errors
    /// Returns an error if the device cannot report its kernel times.
    pub fn end_step(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.recording) {
            return Ok(());
        }
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        if let Some(device) = &mut self.device {
            device.place(recorder)?;
        }
        recorder.end_step(self.clock.now());
        Ok(())
    }

    /// Returns the recorder with all recorded steps, if there is a recorder.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Returns the recorder for changes, if there is a recorder.
    pub(crate) fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    /// Updates operations of `step` with facts that the device reports only at the end of the step.
    /// Does nothing if the step was not recorded.
    pub fn complete(&mut self, step: u64, mut change: impl FnMut(&mut Op)) {
        if let Some(device) = &mut self.device {
            // A recorded step ends before the next one is submitted, so all pending operations
            // belong to it.
            device.pending.iter_mut().for_each(|(op, ..)| change(op));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.complete(step, change);
        }
    }

    /// Sets the stage to which later operations belong.
    pub fn set_stage(&mut self, stage: Option<Stage>) {
        self.stage = stage;
    }

    /// Records an action of an exchange, if a step is being recorded: its messages, once the
    /// compute thread has waited for them, and the time in which that thread has copied them.
    pub(crate) fn record_exchange(&mut self, action: &TimedAction, wait: Option<&ExchangeWait>) {
        let Some(recorder) = self.recorder.as_mut().filter(|_| self.recording) else { return };
        let is_exchange = action.part == ActionPart::Start || wait.is_some();
        if action.stage.resource() != Resource::Link || !is_exchange {
            return;
        }
        let mut push = |work, [start, end]: [Instant; 2]| {
            let (start, end) = (self.clock.at(start), self.clock.at(end));
            recorder.push_exchange(ExchangeSpan { work, stage: action.stage, start, end });
        };
        let flight = wait.and_then(|wait| wait.flight);
        if let Some(flight) = flight {
            push(ExchangeWork::Messages, [flight.sent, flight.arrived]);
        }
        if self.device.is_some() {
            return;
        }
        // Every recording of a step has the same rows, however short they are.
        if action.part == ActionPart::Start {
            push(ExchangeWork::Copy, [action.began, action.ended]);
        } else if let Some(wait) = wait.filter(|_| flight.is_some()) {
            push(ExchangeWork::Copy, [action.began, wait.began]);
            push(ExchangeWork::Copy, [wait.ended, action.ended]);
        }
        if let Some(wait) = wait {
            let (began, ended) = (self.clock.at(wait.began), self.clock.at(wait.ended));
            recorder.narrow_kernel(action.stage, began, ended);
        }
    }

    /// Runs `body` and records it as `op` while a step is being recorded.
    pub fn op<R>(&mut self, op: Op, body: impl FnOnce() -> R) -> R {
        if !self.recording {
            return body();
        }
        let start = self.clock.now();
        if let Some(device) = &mut self.device {
            device.keep(QueueMoments::mark);
            let result = body();
            device.keep(QueueMoments::mark);
            device.pending.push((op, self.stage, [start, self.clock.now()]));
            return result;
        }
        // A synchronous device finishes within the call, so the host times around it are kernel
        // times.
        let kernel_start = self.clock.now();
        let result = body();
        let kernel_end = self.clock.now();
        if let Some(recorder) = &mut self.recorder {
            let end = self.clock.now();
            let stage = self.stage;
            recorder.push(OpSpan { op, stage, start, kernel_start, kernel_end, end });
        }
        result
    }
}

impl DeviceTimes {
    /// Keeps an error until the end of the step, so that tracing never fails an operation.
    fn keep(&mut self, work: impl FnOnce(&mut QueueMoments) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = work(&mut self.moments).err();
        }
    }

    /// Passes the step's operations to the recorder, each with its start and end on the device.
    fn place(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.pending);
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let moments = self.moments.nanoseconds()?;
        let times = moments.chunks_exact(2);
        for ((op, stage, [start, end]), device_times) in pending.into_iter().zip(times) {
            let at = |i: usize| Nanos(self.begin.0 + device_times[i]);
            let (kernel_start, kernel_end) = (at(0), at(1));
            recorder.push(OpSpan { op, stage, start, kernel_start, kernel_end, end });
        }
        Ok(())
    }
}
