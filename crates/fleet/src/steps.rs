//! The training steps that jobs report: the format of the datagrams, and the progress of each
//! process.
//!
//! A datagram has 40 bytes with little-endian fields: version (u8, 1), phase (u8), two zero bytes,
//! process id in its own namespace (u32), step (u64), monotonic nanoseconds (u64), samples of the
//! step (u64), nanoseconds of exposed communication (u64, all ones if unknown). The kernel reports
//! the sender of a datagram. [`Reporter`] is the sending side of this protocol.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ipc::socket::Peer;

mod reporter;

pub use reporter::Reporter;

/// Name of the step socket in a socket folder.
pub const NAME: &str = "rowmill-steps";
/// Size of a datagram in bytes.
pub const LENGTH: usize = 40;
/// Number of the last step times of a process that are kept.
const KEPT: usize = 512;
/// Number of the last step times whose median is the reported step time.
const MEDIAN_OF: usize = 32;
/// Minimum time without a step after which a training process counts as hung. The limit is ten
/// median steps if these are longer.
const HANG_MIN: Duration = Duration::from_secs(120);
/// Minimum busy share of the GPU of a hung process. A collective that waits forever keeps its GPU
/// busy.
const HANG_BUSY: f64 = 0.95;
/// Maximum number of tracked processes. A host has fewer training processes.
const PROCESSES_MAX: usize = 4096;
/// Maximum number of tracked processes of one user.
const PROCESSES_PER_USER: usize = 256;

/// The current activity of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The job prepares its first step.
    Setup,
    Train,
    Evaluate,
    /// The process saves a checkpoint.
    Save,
}

/// The content of one datagram of a training process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMessage {
    pub phase: Phase,
    /// Process id in the process's own namespace.
    pub own_pid: u32,
    pub step: u64,
    /// Time on the process's monotonic clock.
    pub monotonic_ns: u64,
    pub samples: u64,
    /// Time of exposed communication in the step, if known.
    pub exposed_ns: Option<u64>,
}

/// The reason why a datagram is not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepMessageError {
    #[error("step: expected {LENGTH} bytes, got {got}")]
    Length { got: usize },
    #[error("step: expected version 1, got {got}")]
    Version { got: u8 },
    #[error("step: expected phase 0 to 3, got {got}")]
    Phase { got: u8 },
}

impl Phase {
    /// All phases, in the order of their numbers in datagrams.
    pub const ALL: [Self; 4] = [Self::Setup, Self::Train, Self::Evaluate, Self::Save];

    /// Returns the phase as one word.
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
    /// Parses a datagram.
    ///
    /// # Errors
    /// Fails if the length, version or phase is unknown.
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

    /// Encodes the message in the same way as its sender.
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let phase = Phase::ALL.iter().position(|phase| *phase == self.phase).unwrap_or(0);
        (bytes[0], bytes[1]) = (1, u8::try_from(phase).unwrap_or(0));
        bytes[4..8].copy_from_slice(&self.own_pid.to_le_bytes());
        // In the datagram, a field with all bits set means that the value is unknown.
        let exposed = self.exposed_ns.unwrap_or(u64::MAX);
        for (at, field) in [self.step, self.monotonic_ns, self.samples, exposed].iter().enumerate()
        {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// The training progress of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProgress {
    pub phase: Phase,
    pub step: u64,
    /// Time at which the last message of the process arrived.
    pub heard: Duration,
    /// Time of the last step; `None` before the first step.
    pub stepped: Option<Duration>,
    /// Number of steps since the first message.
    pub steps: u64,
    pub samples: u64,
    /// Sum of the exposed communication of all steps.
    pub exposed_ns: u64,
    /// Number of steps with a known time. The time of a step is known if it followed another
    /// training step.
    pub timed_steps: u64,
    /// Sum of the known step times in nanoseconds.
    pub timed_ns: u64,
    /// Number of step times that were kept, including those that newer ones have replaced. Steps
    /// whose messages were lost have one step time together.
    pub times: u64,
    pub uid: u32,
    /// Time in each phase until the last message, in the order of [`Phase::ALL`].
    phase_times: [Duration; Phase::ALL.len()],
    last_ns: u64,
    times_ns: VecDeque<u64>,
}

impl StepProgress {
    /// Returns the median of the last step times.
    pub fn step_time(&self) -> Option<Duration> {
        let last = self.times_ns.iter().rev().take(MEDIAN_OF);
        let times = last.map(|ns| i64::try_from(*ns).unwrap_or(i64::MAX));
        let middle = schema::median::integer_median(&mut times.collect::<Vec<i64>>())?;
        Some(Duration::from_nanos(middle.unsigned_abs()))
    }

    /// Returns the step times since an earlier moment in nanoseconds, in ascending order. `times`
    /// is the value of the field with this name at that moment. Only the last [`KEPT`] are known.
    pub fn times_since(&self, times: u64) -> Vec<u64> {
        let count = usize::try_from(self.times.saturating_sub(times)).unwrap_or(usize::MAX);
        let mut since: Vec<u64> = self.times_ns.iter().rev().take(count).copied().collect();
        since.sort_unstable();
        since
    }

    /// Returns the time in each phase until now, in the order of [`Phase::ALL`]. The time begins at
    /// the first message, and a phase lasts until a message names another one.
    pub fn phase_times(&self, now: Duration) -> [Duration; Phase::ALL.len()] {
        let mut times = self.phase_times;
        times[self.phase as usize] += now.saturating_sub(self.heard);
        times
    }

    /// Whether the process seems to hang, which means that it is training and its GPU is busy, but
    /// no step completes.
    ///
    /// `busy` is the recent busy share of the process's GPU. A job that evaluates, saves or has not
    /// completed a step never counts as hung, because the expected time is unknown.
    pub fn is_hung(&self, now: Duration, busy: f64) -> bool {
        let (Some(stepped), Some(median)) = (self.stepped, self.step_time()) else { return false };
        // Ten median steps may take longer than two minutes, and a job with such slow steps does
        // not hang.
        let limit = HANG_MIN.max(median * 10);
        self.phase == Phase::Train && busy >= HANG_BUSY && now.saturating_sub(stepped) > limit
    }
}

/// The progress of all processes that report steps, by the process id that the kernel reports.
#[derive(Debug, Default)]
pub struct ReportedSteps {
    processes: BTreeMap<u32, StepProgress>,
    dropped: u64,
}

impl ReportedSteps {
    /// Updates the progress of the sender. Messages of processes above the limits are counted and
    /// dropped.
    pub fn receive(&mut self, now: Duration, peer: Peer, message: &StepMessage) {
        let Peer { pid, uid } = peer;
        // The kernel reports process id 0 for a sender outside our namespace, so such senders
        // cannot be told apart.
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
            times: 0,
            uid,
            phase_times: [Duration::ZERO; Phase::ALL.len()],
            last_ns: message.monotonic_ns,
            times_ns: VecDeque::new(),
        });
        // Repeated and late messages do not count as steps. A smaller step number with a later time
        // counts, because the job resumed from a checkpoint.
        let is_step = message.phase == Phase::Train
            && (message.step != progress.step || progress.stepped.is_none())
            && message.monotonic_ns >= progress.last_ns;
        if is_step {
            let steps = message.step.saturating_sub(progress.step).max(1);
            let took = (message.monotonic_ns - progress.last_ns) / steps;
            // The time since an evaluation or a checkpoint is not a step time.
            if progress.phase == Phase::Train && progress.stepped.is_some() {
                if progress.times_ns.len() == KEPT {
                    progress.times_ns.pop_front();
                }
                progress.times_ns.push_back(took);
                progress.times += 1;
                progress.timed_steps += steps;
                progress.timed_ns += message.monotonic_ns - progress.last_ns;
            }
            progress.stepped = Some(now);
            progress.steps += steps;
            progress.samples += message.samples;
            progress.exposed_ns += message.exposed_ns.unwrap_or(0);
            progress.step = message.step;
        }
        progress.phase_times = progress.phase_times(now);
        (progress.heard, progress.phase) = (now, message.phase);
        progress.last_ns = progress.last_ns.max(message.monotonic_ns);
    }

    /// Returns the progress of a process.
    pub fn progress(&self, pid: u32) -> Option<&StepProgress> {
        self.processes.get(&pid)
    }

    /// Returns the number of dropped messages.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the progress of all processes by process id.
    pub fn all(&self) -> &BTreeMap<u32, StepProgress> {
        &self.processes
    }

    /// Removes the processes for which `is_alive` returns `false`.
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
    fn message_round_trips_and_invalid_fields_are_errors() {
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
    fn only_stalled_training_with_a_busy_gpu_is_a_hang() {
        let mut steps = ReportedSteps::default();
        steps.receive(s(0), peer(40), &message(Phase::Setup, 0, 0));
        assert!(!steps.progress(40).unwrap().is_hung(s(9_000), 1.0), "before the first step");
        for step in 1..=20 {
            steps.receive(s(step * 2), peer(40), &message(Phase::Train, step, step * 2));
        }
        let progress = steps.progress(40).unwrap().clone();
        assert_eq!((progress.step_time(), progress.steps), (Some(s(2)), 20));
        assert_eq!(progress.samples, 20 * 32);
        assert_eq!(progress.times_since(16), [2_000_000_000; 3]);
        assert_eq!(progress.phase_times(s(50)), [s(2), s(48), s(0), s(0)]);
        assert!(!progress.is_hung(s(40 + 120), 1.0));
        assert!(progress.is_hung(s(40 + 121), 0.95));
        assert!(!progress.is_hung(s(40 + 121), 0.94), "it waits for data");
        for phase in [Phase::Evaluate, Phase::Save] {
            steps.receive(s(41), peer(40), &message(phase, 20, 41));
            assert!(!steps.progress(40).unwrap().is_hung(s(9_000), 1.0), "{phase:?}");
        }
        // With steps of 60 s, the limit is ten steps.
        let mut slow = ReportedSteps::default();
        for step in 1..=5 {
            slow.receive(s(step * 60), peer(41), &message(Phase::Train, step, step * 60));
        }
        assert!(!slow.progress(41).unwrap().is_hung(s(300 + 600), 1.0));
        assert!(slow.progress(41).unwrap().is_hung(s(300 + 601), 1.0));
    }

    #[test]
    fn lost_late_and_repeated_messages_do_not_distort_step_times() {
        let mut steps = ReportedSteps::default();
        for (step, at) in [(1, 1), (2, 2), (2, 2), (6, 6), (5, 5), (7, 7)] {
            steps.receive(s(at), peer(40), &message(Phase::Train, step, at));
        }
        let progress = steps.progress(40).unwrap();
        assert_eq!((progress.step, progress.step_time()), (7, Some(s(1))));
        assert_eq!((progress.timed_steps, progress.timed_ns), (6, 6_000_000_000));
        steps.keep(|_| false);
        assert!(steps.all().is_empty());
    }

    #[test]
    fn reporting_processes_per_user_are_limited() {
        let mut steps = ReportedSteps::default();
        for pid in 1..=300 {
            steps.receive(s(1), peer(pid), &message(Phase::Train, 1, 1));
        }
        steps.receive(s(1), Peer { pid: 400, uid: 1001 }, &message(Phase::Train, 1, 1));
        assert_eq!(steps.all().len(), PROCESSES_PER_USER + 1);
        assert_eq!(steps.dropped(), 300 - PROCESSES_PER_USER as u64);
    }
}
