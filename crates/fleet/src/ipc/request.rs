//! What becomes of one request to one process: a state machine without clock, file or socket.
//!
//! Kineto neither acknowledges nor reports failure. What is known comes from its polls (does it
//! still ask, is its profiler busy) and from the file it writes (`….tmp`, renamed when whole).
//! Times are spans since the capture began.

use std::fmt;
use std::time::Duration;

/// A poll comes every five seconds and is answered once; the profiler looks once a second.
pub const POLL: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
/// After its start time a trace that was accepted has its file within this.
const START_SLACK: Duration = Duration::from_secs(3);

/// Progress of a file is counted in blocks of this size, or one byte a minute would count.
const BLOCK: u64 = 64 << 10;
/// Bytes per second below which a file that has begun to grow is given up; disks are far faster.
const RATE_MIN: u64 = 1 << 20;
/// Letters of another request's name that are shown.
const ID_SHOWN: usize = 64;

/// Where a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Wanted, and waiting for a poll of a process whose profiler is free.
    Requested,
    /// Sent in answer to a poll.
    Sent,
    /// The process has polled again, so it has read the request.
    Acknowledged,
    Started,
    /// The trace is whole where the process wrote it; it is being copied.
    Finished,
    /// The trace is whole, and ours.
    Written,
    /// There will be no trace.
    Lost(Reason),
}

impl RequestState {
    /// One word for it.
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

/// Why there will be no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its profiler was in use all the time.
    Busy,
    Killed,
    /// It may not write where traces have to go.
    Unwritable(String),
    /// It makes no steps that PyTorch could count, or too few to get to the iteration.
    MissingStep,
    /// The start lies before the profiler could be ready.
    StartTooNear,
    /// It began, and stopped without a trace: its own profiler took over, or a buffer was full.
    Stopped,
    /// It took the request and did not begin.
    NotStarted,
    Silent,
    /// It writes, but nothing comes.
    Stalled,
    /// It writes so slowly that there would be no end.
    Slow,
    /// What lies where its trace should is not to be trusted.
    Refused(String),
    /// The trace was whole, but could not be copied.
    NotCopied(String),
    /// Copying took too long.
    Late,
    /// The file is there, but another request's.
    Foreign(String),
    /// The one who captured gave up.
    Interrupted,
    /// Another request to it is open.
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
            Self::Silent => out.write_str("it stopped asking for requests"),
            Self::Stalled => out.write_str("its trace stopped growing before it was whole"),
            Self::Slow => out.write_str("its trace grew too slowly to be whole in time"),
            Self::Refused(why) => write!(out, "its trace was refused: {why}"),
            Self::NotCopied(why) => write!(out, "its trace could not be copied: {why}"),
            Self::Late => out.write_str("copying its trace took longer than the capture waits"),
            Self::Foreign(id) if id.is_empty() => {
                out.write_str("the file names no request, so it is not the trace asked for")
            }
            Self::Foreign(id) => {
                // The process's words, which may be long and move the cursor.
                let shown: String = id.chars().take(ID_SHOWN).collect();
                write!(out, "the file is of another request ({})", shown.escape_debug())
            }
            Self::Interrupted => out.write_str("the capture was interrupted"),
            Self::Taken => {
                out.write_str("another request waits for its trace, or it has stopped asking")
            }
        }
    }
}

/// What a request asks of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At an iteration: whenever the job gets there.
    Iterations,
    At {
        start: Duration,
        /// How long the profiler runs before.
        warmup: Duration,
        /// How long is recorded.
        length: Duration,
    },
}

/// What the eye sees of a process and its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Whether the process is there.
    pub is_alive: bool,
    /// Bytes of the file that is being written.
    pub growing: Option<u64>,
    /// The trace id of the finished file, empty where it has none.
    pub finished: Option<String>,
    /// Why what lies in the place of a file is not read.
    pub refused: Option<String>,
    /// Why the folder cannot be written, if so.
    pub unwritable: Option<String>,
}

/// One request to one process.
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
    /// When the file had last grown by a block, and to how many.
    grew: (Duration, u64),
    /// When it had grown to its first block.
    wrote: Option<Duration>,
    freed: Option<Duration>,
}

impl CaptureRequest {
    /// A request made now: the text that is sent and the id in it.
    ///
    /// `patience` bounds the wait for the start, and between signs of progress after it.
    pub fn new(now: Duration, text: (String, String), timing: Timing, patience: Duration) -> Self {
        let (config, trace_id) = text;
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

    /// Where it stands.
    pub fn state(&self) -> &RequestState {
        &self.state
    }

    /// Whether nothing more will happen.
    pub fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Written | RequestState::Lost(_))
    }

    /// Gives it up.
    pub fn lose(&mut self, reason: Reason) {
        if !self.is_over() {
            self.state = RequestState::Lost(reason);
        }
    }

    /// The finished trace has been copied.
    pub fn collected(&mut self) {
        if self.state == RequestState::Finished {
            self.state = RequestState::Written;
        }
    }

    /// The process polls; returns the answer, if any.
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
                self.freed.get_or_insert(now);
                None
            }
            _ => None,
        }
    }

    /// What process and file look like.
    pub fn look(&mut self, now: Duration, sight: &Sight) {
        if self.is_over() {
            return;
        }
        if self.state == RequestState::Finished {
            if now > self.grew.0 + self.patience {
                self.lose(Reason::Late);
            }
            return;
        }
        if let Some(why) = &sight.refused {
            return self.lose(Reason::Refused(why.clone()));
        }
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
            // Kineto would drop it in silence.
            self.lose(Reason::StartTooNear);
            return None;
        }
        self.state = RequestState::Sent;
        Some(&self.config)
    }

    /// The process has read the request and its profiler is free. For iterations it waits for its
    /// iteration, or refused because no step was made yet: the repeated request is dropped in the
    /// first case and taken in the second.
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
            self.lose(if self.is_busy { Reason::Busy } else { Reason::StartTooNear });
        }
    }

    fn look_sent(&mut self, now: Duration, sight: &Sight) {
        let due = match self.timing {
            Timing::Iterations => self.requested + self.patience,
            Timing::At { start, length, .. } => start + length + self.patience,
        };
        if now > due {
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
        // The file is renamed before the profiler is free; later none will come.
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

    /// How long what has been written would have taken at the slowest rate that is waited for.
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
