//! Steps of training jobs, as the jobs report them: datagrams, and what they say together.
//!
//! A datagram has 40 bytes, little-endian: version (u8, 1), phase (u8), two zero bytes, the process
//! as it sees itself (u32), step (u64), monotonic nanoseconds (u64), samples of the step (u64),
//! nanoseconds of exposed communication (u64, all ones where unknown). Whose it is, the kernel
//! says. Knows no clock; only [`Reporter`], the sending side, knows a socket.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ipc::socket::Peer;

mod reporter;

pub use reporter::Reporter;

/// The name of the socket in a socket folder.
pub const NAME: &str = "rowmill-steps";
/// Bytes of a datagram.
pub const LENGTH: usize = 40;
/// Steps whose times are kept: their median is the step time.
const KEPT: usize = 32;
/// A process that trains and makes no step for this long, or ten times its median, may hang.
const HANG_MIN: Duration = Duration::from_secs(120);
/// The share of time a GPU is busy in a collective that waits for ever.
const HANG_BUSY: f64 = 0.95;
/// Processes that are kept: a host has fewer.
const PROCESSES_MAX: usize = 4096;
/// Processes of one user that are kept.
const PROCESSES_PER_USER: usize = 256;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the first step.
    Setup,
    Train,
    Evaluate,
    /// It writes a checkpoint.
    Save,
}

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMessage {
    /// What the job does.
    pub phase: Phase,
    /// The process as it sees itself.
    pub own_pid: u32,
    pub step: u64,
    /// When, on the process's monotonic clock.
    pub monotonic_ns: u64,
    /// Samples of the step.
    pub samples: u64,
    /// Communication that nothing hid, where it is known.
    pub exposed_ns: Option<u64>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepMessageError {
    #[error("step: expected {LENGTH} bytes, got {got}")]
    Length {
        /// Bytes there are.
        got: usize,
    },
    #[error("step: expected version 1, got {got}")]
    Version {
        /// As the message says.
        got: u8,
    },
    #[error("step: expected phase 0 to 3, got {got}")]
    Phase {
        /// As the message says.
        got: u8,
    },
}

impl Phase {
    const ALL: [Self; 4] = [Self::Setup, Self::Train, Self::Evaluate, Self::Save];

    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Train => "train",
            Self::Evaluate => "evaluate",
            Self::Save => "save",
        }
    }
}

impl StepMessage {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Its length, version or phase is not one that is known.
    pub fn parse(bytes: &[u8]) -> Result<Self, StepMessageError> {
        let whole: Option<&[u8; LENGTH]> = bytes.try_into().ok();
        let whole = whole.ok_or(StepMessageError::Length { got: bytes.len() })?;
        if whole[0] != 1 {
            return Err(StepMessageError::Version { got: whole[0] });
        }
        let phase = Phase::ALL.get(usize::from(whole[1])).copied();
        let phase = phase.ok_or(StepMessageError::Phase { got: whole[1] })?;
        let long =
            |at: usize| whole[at..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field));
        let own_pid = whole[4..].first_chunk().map_or(0, |field| u32::from_le_bytes(*field));
        let exposed_ns = Some(long(32)).filter(|&exposed| exposed != u64::MAX);
        let (step, monotonic_ns, samples) = (long(8), long(16), long(24));
        Ok(Self { phase, own_pid, step, monotonic_ns, samples, exposed_ns })
    }

    /// The message as its sender writes it.
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let phase = Phase::ALL.iter().position(|phase| *phase == self.phase).unwrap_or(0);
        (bytes[0], bytes[1]) = (1, u8::try_from(phase).unwrap_or(0));
        bytes[4..8].copy_from_slice(&self.own_pid.to_le_bytes());
        let exposed = self.exposed_ns.unwrap_or(u64::MAX);
        for (at, field) in [self.step, self.monotonic_ns, self.samples, exposed].iter().enumerate()
        {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// What one process has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProgress {
    pub phase: Phase,
    pub step: u64,
    /// When its last message came.
    pub heard: Duration,
    /// When its last step came; `None` before the first.
    pub stepped: Option<Duration>,
    /// Steps since it was first heard.
    pub steps: u64,
    pub samples: u64,
    /// Exposed communication since then.
    pub exposed_ns: u64,
    /// Steps whose time is known: those that followed another one in training.
    pub timed_steps: u64,
    /// Nanoseconds of all of them.
    pub timed_ns: u64,
    uid: u32,
    last_ns: u64,
    times_ns: VecDeque<u64>,
}

impl StepProgress {
    /// The median time of its last steps.
    pub fn step_time(&self) -> Option<Duration> {
        let times = self.times_ns.iter().map(|ns| i64::try_from(*ns).unwrap_or(i64::MAX));
        let middle = schema::median::integer_median(&mut times.collect::<Vec<i64>>())?;
        Some(Duration::from_nanos(middle.unsigned_abs()))
    }

    /// Whether it seems to hang: it trains, its GPU works all the time, and no step comes.
    ///
    /// `busy` is the share of time its GPU worked lately. A job that evaluates, saves or has not
    /// made a step yet never hangs: how long that takes is unknown.
    pub fn is_hung(&self, now: Duration, busy: f64) -> bool {
        let (Some(stepped), Some(median)) = (self.stepped, self.step_time()) else { return false };
        let limit = HANG_MIN.max(median * 10);
        self.phase == Phase::Train && busy >= HANG_BUSY && now.saturating_sub(stepped) > limit
    }
}

/// All processes that report steps, by process id, as the kernel reports it.
#[derive(Debug, Default)]
pub struct ReportedSteps {
    processes: BTreeMap<u32, StepProgress>,
    dropped: u64,
}

impl ReportedSteps {
    /// Takes a message in. Messages of processes beyond the limits are counted and dropped.
    pub fn hear(&mut self, now: Duration, peer: Peer, message: &StepMessage) {
        let Peer { pid, uid } = peer;
        if pid == 0 {
            return;
        }
        if !self.processes.contains_key(&pid) {
            let of_user = self.processes.values().filter(|known| known.uid == uid).count();
            if of_user >= PROCESSES_PER_USER || self.processes.len() >= PROCESSES_MAX {
                self.dropped += 1;
                return;
            }
        }
        let progress = self.processes.entry(pid).or_insert_with(|| StepProgress {
            phase: message.phase,
            step: message.step,
            heard: now,
            stepped: None,
            steps: 0,
            samples: 0,
            exposed_ns: 0,
            timed_steps: 0,
            timed_ns: 0,
            uid,
            last_ns: message.monotonic_ns,
            times_ns: VecDeque::new(),
        });
        // Neither a repeated nor a late message is a step; a smaller number is a job that resumed.
        let is_step = message.phase == Phase::Train
            && (message.step != progress.step || progress.stepped.is_none())
            && message.monotonic_ns >= progress.last_ns;
        if is_step {
            let steps = message.step.saturating_sub(progress.step).max(1);
            let took = (message.monotonic_ns - progress.last_ns) / steps;
            // What lay between two phases is no step time.
            if progress.phase == Phase::Train && progress.stepped.is_some() {
                if progress.times_ns.len() == KEPT {
                    progress.times_ns.pop_front();
                }
                progress.times_ns.push_back(took);
                progress.timed_steps += steps;
                progress.timed_ns += message.monotonic_ns - progress.last_ns;
            }
            progress.stepped = Some(now);
            progress.steps += steps;
            progress.samples += message.samples;
            progress.exposed_ns += message.exposed_ns.unwrap_or(0);
            progress.step = message.step;
        }
        (progress.heard, progress.phase) = (now, message.phase);
        progress.last_ns = progress.last_ns.max(message.monotonic_ns);
    }

    /// What a process has reported.
    pub fn progress(&self, pid: u32) -> Option<&StepProgress> {
        self.processes.get(&pid)
    }

    /// Messages of processes beyond the limits.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Everyone, by process number.
    pub fn all(&self) -> &BTreeMap<u32, StepProgress> {
        &self.processes
    }

    /// Forgets processes that are gone.
    pub fn keep(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.processes.retain(|&pid, _| is_alive(pid));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        LENGTH, PROCESSES_PER_USER, Peer, Phase, ReportedSteps, StepMessage, StepMessageError,
    };

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn peer(pid: u32) -> Peer {
        Peer { pid, uid: 1000 }
    }

    fn message(phase: Phase, step: u64, seconds: u64) -> StepMessage {
        let monotonic_ns = seconds * 1_000_000_000;
        StepMessage { phase, own_pid: 7, step, monotonic_ns, samples: 32, exposed_ns: None }
    }

    #[test]
    fn a_message_survives_its_bytes_and_every_lie_is_named() {
        let with = StepMessage { exposed_ns: Some(5), ..message(Phase::Save, u64::MAX - 1, 3) };
        for message in [message(Phase::Train, 9, 1), with] {
            assert_eq!(StepMessage::parse(&message.to_bytes()), Ok(message));
        }
        let bytes = with.to_bytes();
        for length in 0..LENGTH {
            assert_eq!(
                StepMessage::parse(&bytes[..length]),
                Err(StepMessageError::Length { got: length })
            );
        }
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            StepMessage::parse(&bytes)
        };
        assert_eq!(changed(0, 2), Err(StepMessageError::Version { got: 2 }));
        assert_eq!(changed(1, 4), Err(StepMessageError::Phase { got: 4 }));
    }

    #[test]
    fn only_training_that_stopped_with_a_busy_gpu_is_a_hang() {
        let mut steps = ReportedSteps::default();
        steps.hear(s(0), peer(40), &message(Phase::Setup, 0, 0));
        assert!(!steps.progress(40).unwrap().is_hung(s(9_000), 1.0), "before the first step");
        for step in 1..=20 {
            steps.hear(s(step * 2), peer(40), &message(Phase::Train, step, step * 2));
        }
        let progress = steps.progress(40).unwrap().clone();
        assert_eq!((progress.step_time(), progress.steps), (Some(s(2)), 20));
        assert_eq!(progress.samples, 20 * 32);
        assert!(!progress.is_hung(s(40 + 120), 1.0));
        assert!(progress.is_hung(s(40 + 121), 0.95));
        assert!(!progress.is_hung(s(40 + 121), 0.94), "it waits for data");
        for phase in [Phase::Evaluate, Phase::Save] {
            steps.hear(s(41), peer(40), &message(phase, 20, 41));
            assert!(!steps.progress(40).unwrap().is_hung(s(9_000), 1.0), "{phase:?}");
        }
        // Slow steps have a longer patience: ten of them.
        let mut slow = ReportedSteps::default();
        for step in 1..=5 {
            slow.hear(s(step * 60), peer(41), &message(Phase::Train, step, step * 60));
        }
        assert!(!slow.progress(41).unwrap().is_hung(s(300 + 600), 1.0));
        assert!(slow.progress(41).unwrap().is_hung(s(300 + 601), 1.0));
    }

    #[test]
    fn lost_late_and_repeated_messages_do_not_bend_the_figures() {
        let mut steps = ReportedSteps::default();
        for (step, at) in [(1, 1), (2, 2), (2, 2), (6, 6), (5, 5), (7, 7)] {
            steps.hear(s(at), peer(40), &message(Phase::Train, step, at));
        }
        let progress = steps.progress(40).unwrap();
        assert_eq!((progress.step, progress.step_time()), (7, Some(s(1))));
        assert_eq!((progress.timed_steps, progress.timed_ns), (6, 6_000_000_000));
        steps.keep(|_| false);
        assert!(steps.all().is_empty());
    }

    #[test]
    fn one_user_cannot_report_steps_of_endlessly_many_processes() {
        let mut steps = ReportedSteps::default();
        for pid in 1..=300 {
            steps.hear(s(1), peer(pid), &message(Phase::Train, 1, 1));
        }
        steps.hear(s(1), Peer { pid: 400, uid: 1001 }, &message(Phase::Train, 1, 1));
        assert_eq!(steps.all().len(), PROCESSES_PER_USER + 1);
        assert_eq!(steps.dropped(), 300 - PROCESSES_PER_USER as u64);
    }
}
