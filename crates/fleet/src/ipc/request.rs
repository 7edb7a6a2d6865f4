//! The state machine of one trace request to one process. This module uses neither clocks nor files
//! nor sockets.
//!
//! Kineto neither acknowledges requests nor reports failures. The state is therefore inferred from
//! the process's polls (whether it still polls, whether its profiler is busy) and from its trace
//! file, which is named `….tmp` until it is complete. Times are relative to the start of the
//! capture.

use std::fmt;
use std::time::Duration;

/// Interval of polls: a process polls every five seconds, and its profiler checks for work once a
/// second.
pub const POLL: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
/// If a process accepted a request with a start time, its file appears within this time after the
/// start.
const START_SLACK: Duration = Duration::from_secs(3);

/// Size of the blocks in which the growth of a file is measured. With smaller blocks, a process
/// could delay the timeout by writing single bytes.
const BLOCK: u64 = 64 << 10;
/// Minimum growth of a file in bytes per second; a request whose file grows more slowly is given
/// up. Disks are far faster.
const RATE_MIN: u64 = 1 << 20;
/// Number of characters that are shown of the id of another request.
const ID_SHOWN: usize = 64;

/// The state of a request, from its creation to a trace or a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// The request waits for a poll of the process with a free profiler.
    Requested,
    /// The request was sent in the answer to a poll.
    Sent,
    /// The process has polled again, so it has read the request.
    Acknowledged,
    Started,
    /// The trace is complete in the process's folder, and is being copied.
    Finished,
    /// The trace is complete and was copied to its destination.
    Written,
    /// The request ended without a trace.
    Lost(Reason),
}

impl RequestState {
    /// Returns the state as one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Sent => "sent",
            Self::Acknowledged => "acknowledged",
            Self::Started => "started",
            Self::Finished => "copying",
            Self::Written => "written",
            Self::Lost(_) => "lost",
        }
    }
}

/// The reason why a request ends without a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The process's profiler was busy with another trace until the timeout.
    Busy,
    Killed,
    /// The process cannot write to the folder for traces.
    Unwritable(String),
    /// The job does not count steps, or too few to reach the iteration.
    MissingStep,
    /// The start time is too early for the profiler to be ready.
    StartTooNear,
    /// Recording started and stopped without a trace: the job's own profiler took over, or a buffer
    /// was full.
    Stopped,
    /// The request was accepted, but recording did not start.
    NotStarted,
    Silent,
    /// The trace file stopped growing before it was complete.
    Stalled,
    /// The file grows too slowly to be complete in time.
    Slow,
    /// The file at the trace's path failed the checks of [`crate::untrusted`] or is not JSON.
    Refused(String),
    /// The trace is complete, but it could not be copied.
    NotCopied(String),
    /// Copying the trace took longer than the timeout.
    Late,
    /// The completed file has the trace id of another request, or none.
    Foreign(String),
    /// The user interrupted the capture before the trace was written.
    Interrupted,
    /// Another request to this process is still open.
    Taken,
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => out.write_str("its profiler is busy with another trace"),
            Self::Killed => out.write_str("the process ended before its trace was written"),
            Self::Unwritable(why) => write!(out, "it cannot write its trace: {why}"),
            Self::MissingStep => out.write_str(
                "it did not reach the iteration: it makes no step (optimizer.step(), profiler.step()), \
                 too few in the time, or waits for an earlier request's iteration",
            ),
            Self::StartTooNear => {
                out.write_str("the start was too near for its profiler to warm up")
            }
            Self::Stopped => out.write_str(
                "the profiler stopped without a trace: the job's own profiler took over, or its \
                 buffers were full",
            ),
            Self::NotStarted => out.write_str("it took the request but did not begin to record"),
            Self::Silent => out.write_str("it stopped polling for requests"),
            Self::Stalled => out.write_str("its trace stopped growing before it was complete"),
            Self::Slow => out.write_str("its trace grew too slowly to be complete in time"),
            Self::Refused(why) => write!(out, "its trace was refused: {why}"),
            Self::NotCopied(why) => write!(out, "its trace could not be copied: {why}"),
            Self::Late => out.write_str("copying its trace took longer than the capture's timeout"),
            Self::Foreign(id) if id.is_empty() => {
                out.write_str("the file names no request, so it is not the requested trace")
            }
            Self::Foreign(id) => {
                // The id was chosen by the process. Such an id may be long or contain control
                // characters.
                let shown: String = id.chars().take(ID_SHOWN).collect();
                write!(out, "the file belongs to another request ({})", shown.escape_debug())
            }
            Self::Interrupted => out.write_str("the capture was interrupted"),
            Self::Taken => {
                out.write_str("another request waits for its trace, or it has stopped polling")
            }
        }
    }
}

/// The timing of a request, relative to the start of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Recording starts at an iteration, whenever the job reaches it.
    Iterations,
    At {
        start: Duration,
        /// Time for which the profiler runs before it records.
        warmup: Duration,
        length: Duration,
    },
}

/// The observed state of a process and its trace file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    pub is_alive: bool,
    /// Size of the file that is being written.
    pub growing: Option<u64>,
    /// Trace id of the completed file; empty if it has none.
    pub finished: Option<String>,
    /// The reason why the file at the trace's path is not read.
    pub refused: Option<String>,
    /// The reason why the folder is not writable.
    pub unwritable: Option<String>,
}

/// A request to one process, with its progress.
#[derive(Clone, Debug)]
pub struct CaptureRequest {
    state: RequestState,
    config: String,
    trace_id: String,
    timing: Timing,
    patience: Duration,
    requested: Duration,
    polled: Duration,
    is_busy: bool,
    /// Time at which the file last grew by a block, and its size in blocks at that time.
    grew: (Duration, u64),
    /// Time at which the first whole block of the file was written.
    wrote: Option<Duration>,
    freed: Option<Duration>,
}

impl CaptureRequest {
    /// Creates a request with the text to send and the trace id in it.
    ///
    /// `patience` limits the wait for the start of the recording, and after the start the time
    /// without progress.
    pub fn new(
        now: Duration,
        config: String,
        trace_id: String,
        timing: Timing,
        patience: Duration,
    ) -> Self {
        Self {
            state: RequestState::Requested,
            config,
            trace_id,
            timing,
            patience,
            requested: now,
            polled: now,
            is_busy: false,
            grew: (now, 0),
            wrote: None,
            freed: None,
        }
    }

    /// Returns the current state.
    pub fn state(&self) -> &RequestState {
        &self.state
    }

    /// Whether the request has ended, with a trace or a reason.
    pub fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Written | RequestState::Lost(_))
    }

    /// Ends the request as lost, unless it is already over.
    pub fn lose(&mut self, reason: Reason) {
        if !self.is_over() {
            self.state = RequestState::Lost(reason);
        }
    }

    /// Notes that the completed trace has been copied.
    pub fn collected(&mut self) {
        if self.state == RequestState::Finished {
            self.state = RequestState::Written;
        }
    }

    /// Processes a poll of the process and returns the text to answer, if any.
    pub fn poll(&mut self, now: Duration, is_free: bool) -> Option<&str> {
        self.polled = now;
        self.is_busy = !is_free;
        match (&self.state, is_free) {
            (RequestState::Requested, true) => self.send(now),
            (RequestState::Sent | RequestState::Acknowledged, true) => self.again(now),
            (RequestState::Sent | RequestState::Acknowledged, false) => {
                self.begin(now);
                None
            }
            (RequestState::Started, true) => {
                // Only the first poll with a free profiler after the recording counts, so that
                // later polls do not extend the wait for the file.
                self.freed.get_or_insert(now);
                None
            }
            _ => None,
        }
    }

    /// Updates the state with an observation of the process and its file.
    pub fn look(&mut self, now: Duration, sight: &Sight) {
        if self.is_over() {
            return;
        }
        if self.state == RequestState::Finished {
            // For a finished trace, `grew` is the time at which the file was found complete.
            // Copying starts at that time, so the timeout counts from it.
            if now > self.grew.0 + self.patience {
                self.lose(Reason::Late);
            }
            return;
        }
        if let Some(why) = &sight.refused {
            return self.lose(Reason::Refused(why.clone()));
        }
        // A complete file counts even if the process has ended, because it may end right after
        // writing.
        if let Some(id) = &sight.finished {
            self.grew = (now, 0);
            self.state = if *id == self.trace_id {
                RequestState::Finished
            } else {
                RequestState::Lost(Reason::Foreign(id.clone()))
            };
            return;
        }
        if !sight.is_alive {
            return self.lose(Reason::Killed);
        }
        if let Some(bytes) = sight.growing {
            self.begin(now);
            // Only whole blocks count as growth, so that single bytes cannot postpone the timeout.
            let blocks = bytes / BLOCK;
            if blocks > self.grew.1 {
                self.grew = (now, blocks);
                self.wrote.get_or_insert(now);
            }
        }
        match self.state {
            RequestState::Requested => self.look_requested(now, sight),
            RequestState::Sent | RequestState::Acknowledged => self.look_sent(now, sight),
            RequestState::Started => self.look_started(now, sight),
            RequestState::Finished | RequestState::Written | RequestState::Lost(_) => {}
        }
    }

    fn send(&mut self, now: Duration) -> Option<&str> {
        if let Timing::At { start, warmup, .. } = self.timing
            && start < now + warmup + TICK
        {
            // Kineto silently drops a request whose start leaves no time for the warm-up.
            self.lose(Reason::StartTooNear);
            return None;
        }
        self.state = RequestState::Sent;
        Some(&self.config)
    }

    /// Handles a poll of a process that has read the request but whose profiler is still free.
    /// Either the process waits for the iteration, or it refused the request because it had not
    /// made a step yet. The request is sent again, which the process ignores in the first case and
    /// accepts in the second.
    fn again(&mut self, now: Duration) -> Option<&str> {
        self.state = RequestState::Acknowledged;
        match self.timing {
            Timing::Iterations => Some(&self.config),
            Timing::At { start, .. } => {
                if now > start + START_SLACK {
                    self.lose(Reason::NotStarted);
                }
                None
            }
        }
    }

    fn begin(&mut self, now: Duration) {
        if matches!(self.state, RequestState::Sent | RequestState::Acknowledged) {
            self.state = RequestState::Started;
            self.grew = (now, 0);
        }
    }

    fn look_requested(&mut self, now: Duration, sight: &Sight) {
        if let Some(why) = &sight.unwritable {
            self.lose(Reason::Unwritable(why.clone()));
        } else if now > self.requested + self.patience {
            self.lose(if self.is_busy { Reason::Busy } else { Reason::Silent });
        } else if let Timing::At { start, warmup, .. } = self.timing
            && start < now + warmup + TICK
        {
            // The start time can no longer be met. If the profiler was busy until now, report that,
            // because it is the cause.
            self.lose(if self.is_busy { Reason::Busy } else { Reason::StartTooNear });
        }
    }

    fn look_sent(&mut self, now: Duration, sight: &Sight) {
        let due = match self.timing {
            Timing::Iterations => self.requested + self.patience,
            Timing::At { start, length, .. } => start + length + self.patience,
        };
        if now > due {
            // Three missed polls mean that the process no longer polls. On a busy machine, a single
            // poll may be late.
            let is_silent = now > self.polled + 3 * POLL;
            self.lose(match (&sight.unwritable, self.timing) {
                (Some(why), _) => Reason::Unwritable(why.clone()),
                _ if is_silent => Reason::Silent,
                (None, Timing::Iterations) => Reason::MissingStep,
                (None, Timing::At { .. }) => Reason::NotStarted,
            });
        }
    }

    fn look_started(&mut self, now: Duration, sight: &Sight) {
        // Kineto renames the file before its profiler becomes free. If the profiler is free and
        // there is no file, none will appear later.
        let is_left = self.freed.is_some_and(|freed| now > freed + 2 * TICK);
        if is_left && sight.growing.is_none() {
            self.lose(match &sight.unwritable {
                Some(why) => Reason::Unwritable(why.clone()),
                None => Reason::Stopped,
            });
        } else if now > self.grew.0 + self.patience + self.length() {
            self.lose(Reason::Stalled);
        } else if self.wrote.is_some_and(|wrote| now > wrote + self.patience + self.expected()) {
            self.lose(Reason::Slow);
        }
    }

    /// Returns the time that writing the current size takes at the minimum rate.
    fn expected(&self) -> Duration {
        Duration::from_secs(self.grew.1 * BLOCK / RATE_MIN)
    }

    fn length(&self) -> Duration {
        match self.timing {
            Timing::Iterations => Duration::ZERO,
            Timing::At { length, warmup, .. } => length + warmup,
        }
    }
}

#[cfg(test)]
mod tests;
