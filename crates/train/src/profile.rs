//! Times the operations of a step while a trace is being taken; costs one branch otherwise.
//! Knows nothing of the trace's format: spans go to `trace::record`.

use device::Error;
use device::backend::QueueMoments;
use schema::{Nanos, Op};
use trace::{Clock, OpSpan, Recorder};

/// Records one span per operation of the steps it is told to record.
pub struct Profiler {
    clock: Clock,
    recorder: Option<Recorder>,
    recording: bool,
    device: Option<OfDevice>,
}

/// A device that works while the host goes on: when it did what is known at the end of a step.
struct OfDevice {
    moments: QueueMoments,
    /// The host's clock where `moments` begins.
    begin: Nanos,
    /// Operations of the open step, as the host went through them.
    pending: Vec<(Op, [Nanos; 2])>,
    error: Option<Error>,
}

impl Profiler {
    /// A profiler that never records.
    #[must_use]
    pub fn off() -> Self {
        Self { clock: Clock::start(), recorder: None, recording: false, device: None }
    }

    /// A profiler that records into `recorder`, whose times are `clock`'s.
    #[must_use]
    pub fn new(recorder: Recorder, clock: Clock) -> Self {
        Self { clock, recorder: Some(recorder), recording: false, device: None }
    }

    /// Whether there is a recorder.
    pub(crate) fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Takes the times of kernels from the device.
    pub(crate) fn with_moments(self, moments: Option<QueueMoments>) -> Self {
        let of = |moments| OfDevice { moments, begin: Nanos(0), pending: Vec::new(), error: None };
        Self { device: moments.map(of), ..self }
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

    /// Ends the step begun last.
    ///
    /// # Errors
    /// Where the device does not say when it worked.
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

    /// What was recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Changes operations of `step`, if it was recorded: what a device tells of a step it tells at
    /// its end.
    pub fn complete(&mut self, step: u64, mut change: impl FnMut(&mut Op)) {
        if let Some(device) = &mut self.device {
            // No step is given to the device before a recorded one has ended.
            device.pending.iter_mut().for_each(|(op, _)| change(op));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.complete(step, change);
        }
    }

    /// Runs `body` as `op`.
    pub fn op<R>(&mut self, op: Op, body: impl FnOnce() -> R) -> R {
        if !self.recording {
            return body();
        }
        let start = self.clock.now();
        if let Some(device) = &mut self.device {
            device.keep(QueueMoments::mark);
            let result = body();
            device.keep(QueueMoments::mark);
            device.pending.push((op, [start, self.clock.now()]));
            return result;
        }
        let kernel_start = self.clock.now();
        let result = body();
        let kernel_end = self.clock.now();
        if let Some(recorder) = &mut self.recorder {
            let end = self.clock.now();
            recorder.push(OpSpan { op, start, kernel_start, kernel_end, end });
        }
        result
    }
}

impl OfDevice {
    /// Keeps what goes wrong for the end of the step: an operation is not failed by its trace.
    fn keep(&mut self, work: impl FnOnce(&mut QueueMoments) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = work(&mut self.moments).err();
        }
    }

    /// Gives the step's operations to the recorder, each with two moments of the device.
    fn place(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.pending);
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let moments = self.moments.nanoseconds()?;
        for ((op, [start, end]), of_device) in pending.into_iter().zip(moments.chunks_exact(2)) {
            let at = |i: usize| Nanos(self.begin.0 + of_device[i]);
            recorder.push(OpSpan { op, start, kernel_start: at(0), kernel_end: at(1), end });
        }
        Ok(())
    }
}
