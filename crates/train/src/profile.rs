//! Times the operations of a step while a trace is being taken; costs one branch otherwise.
//! Knows nothing of the trace's format: spans go to `trace::record`.

use schema::Op;
use trace::{Clock, OpSpan, Recorder};

/// Records one span per operation of the steps it is told to record.
pub struct Profiler {
    clock: Clock,
    recorder: Option<Recorder>,
    recording: bool,
}

impl Profiler {
    /// A profiler that never records.
    #[must_use]
    pub fn off() -> Self {
        Self { clock: Clock::start(), recorder: None, recording: false }
    }

    /// A profiler that records into `recorder`, whose times are `clock`'s.
    #[must_use]
    pub fn new(recorder: Recorder, clock: Clock) -> Self {
        Self { clock, recorder: Some(recorder), recording: false }
    }

    /// Starts recording `step`, if there is a recorder.
    pub fn begin_step(&mut self, step: u64) {
        let now = self.clock.now();
        if let Some(recorder) = &mut self.recorder {
            recorder.begin_step(step, now);
            self.recording = true;
        }
    }

    /// Ends the step begun last.
    pub fn end_step(&mut self) {
        let now = self.clock.now();
        if let Some(recorder) = self.recorder.as_mut().filter(|_| self.recording) {
            recorder.end_step(now);
        }
        self.recording = false;
    }

    /// What was recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Changes operations of `step`, if it was recorded: what a device tells of a step it tells at
    /// its end.
    pub fn complete(&mut self, step: u64, change: impl FnMut(&mut Op)) {
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
