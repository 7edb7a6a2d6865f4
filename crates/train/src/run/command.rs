//! The commands that rank 0 sends to every rank, and their encoding. The methods of the worker send
//! the replies.

use crate::RunStep;

/// An instruction of rank 0 that every rank carries out. The batch that it refers to comes from the
/// rank's [`super::Feed`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// Waits until every rank has loaded its weights.
    Begin,
    /// Runs one training step on the next batch. The command may arrive before earlier steps are
    /// done.
    Train(TrainStep),
    /// Ends a series of training steps. The ranks train its last batch without waiting for the
    /// next one.
    Pause,
    /// Starts reading the held-out data from its first batch.
    ReadHeldOut,
    /// Runs a forward pass on the next batch of held-out data.
    Evaluate,
    /// Writes parameters into the checkpoint of this step, which rank 0 creates and commits.
    Save {
        step: u64,
        /// Whether the parameters must give a finite loss on the last batch.
        probe: bool,
    },
    /// Averages the tables of replica groups after this number of steps of the run.
    AverageGroups { steps: u64 },
    /// Writes the recorded trace.
    WriteTrace,
    /// Reads the outcome of the last training step.
    Settle,
    /// Ends the run on this rank.
    Finish,
}

/// The step that a batch trains, and whether the trace records it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainStep {
    pub step: RunStep,
    pub record: bool,
}

impl Command {
    /// Encodes the command as a code, a flag and two 64-bit words.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let (code, flag, words) = match self {
            Self::Begin => (0, false, [0; 2]),
            Self::Train(TrainStep { step, record }) => {
                (1, record, [step.number, step.factor.to_bits()])
            }
            Self::Evaluate => (2, false, [0; 2]),
            Self::Save { step, probe } => (3, probe, [step, 0]),
            Self::WriteTrace => (4, false, [0; 2]),
            Self::Finish => (5, false, [0; 2]),
            Self::Settle => (6, false, [0; 2]),
            Self::Pause => (7, false, [0; 2]),
            Self::ReadHeldOut => (8, false, [0; 2]),
            Self::AverageGroups { steps } => (9, false, [steps, 0]),
        };
        let mut bytes = [0; BYTES];
        (bytes[0], bytes[1]) = (code, u8::from(flag));
        for (to, word) in bytes[2..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a command of rank 0. Returns `None` if `bytes` do not encode one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let word = &bytes[2 + 8 * at..][..8];
            word.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let flag = bytes[1] == 1;
        Some(match bytes[0] {
            0 => Self::Begin,
            1 => {
                let step = RunStep { number: word(0), factor: f64::from_bits(word(1)) };
                Self::Train(TrainStep { step, record: flag })
            }
            2 => Self::Evaluate,
            3 => Self::Save { step: word(0), probe: flag },
            4 => Self::WriteTrace,
            5 => Self::Finish,
            6 => Self::Settle,
            7 => Self::Pause,
            8 => Self::ReadHeldOut,
            9 => Self::AverageGroups { steps: word(0) },
            _ => return None,
        })
    }
}

const BYTES: usize = 18;

#[cfg(test)]
mod tests {
    use super::{Command, TrainStep};
    use crate::RunStep;

    #[test]
    fn commands_survive_the_message() {
        let step = RunStep { number: 1 << 40, factor: 0.1 };
        for command in [
            Command::Begin,
            Command::Train(TrainStep { step, record: true }),
            Command::ReadHeldOut,
            Command::AverageGroups { steps: 12 },
            Command::Evaluate,
            Command::Save { step: 7, probe: true },
            Command::WriteTrace,
            Command::Finish,
            Command::Settle,
            Command::Pause,
        ] {
            assert_eq!(Command::from_bytes(&command.to_bytes()), Some(command));
        }
        assert_eq!(Command::from_bytes(&[10; 18]), None);
        assert_eq!(Command::from_bytes(&[]), None);
    }
}
