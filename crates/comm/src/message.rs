//! Messages between ranks. A message has a header, which identifies the collective, and a payload.

use std::fmt;
use std::time::Instant;

use crate::element::{ElementType, Load};

/// A kind of collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Sends one rank's values to all ranks.
    Broadcast,
    /// Sends every rank's values to all ranks.
    AllGather,
    /// Sends the sum over ranks to all ranks.
    AllReduce,
    /// Sums over ranks and sends each rank its part of the sum.
    ReduceScatter,
    /// Sends a part from each rank to each rank.
    AllToAll,
    Barrier,
}

impl Verb {
    /// All collectives, indexed by their code in an encoded header.
    pub const ALL: [Self; 6] = [
        Self::Broadcast,
        Self::AllGather,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// Returns the name of the collective in error messages and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The operation to which a message belongs, as described by its sender. Two ranks in the same
/// operation agree on every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageOperation {
    pub verb: Verb,
    /// Number of collectives that the sender has begun on this communicator, including this one.
    pub sequence: u64,
    pub step: u64,
    /// Hash of the job's configuration, data and plan.
    pub plan: u64,
    /// Type of the elements that the operation moves.
    pub element: ElementType,
    /// Number of elements, if all ranks must agree on it. The count is `None` if each message has
    /// its own length.
    pub count: Option<u64>,
}

impl fmt::Display for MessageOperation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, sequence, step, plan, element, count } = self;
        write!(out, "{verb} #{sequence} of ")?;
        if let Some(count) = count {
            write!(out, "{count} ")?;
        }
        write!(out, "{} in step {step}, plan {plan:016x}", element.name())
    }
}

/// The phase of an operation to which a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The only phase of an operation, or its first one.
    First,
    /// The second phase of an all-reduce, which distributes the sums.
    Second,
}

/// The header of a message, which is checked before the payload is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    pub channel: u32,
    pub operation: MessageOperation,
    pub phase: Phase,
    /// Number of elements in the payload.
    pub len: u64,
}

/// Size of an encoded [`MessageHeader`] in bytes.
pub const HEADER_BYTES: usize = 48;

impl MessageHeader {
    /// Encodes the header in little-endian order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let MessageOperation { verb, sequence, step, plan, element, count } = self.operation;
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = verb as u8;
        bytes[1] = element as u8;
        bytes[2] = self.phase as u8;
        bytes[3] = u8::from(count.is_some());
        bytes[4..8].copy_from_slice(&self.channel.to_le_bytes());
        let words = [sequence, step, plan, count.unwrap_or(0), self.len];
        for (to, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a message header. Returns `None` if the bytes are invalid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [verb, element, phase, counted, rest @ ..] = bytes;
        let (channel, words) = rest.split_first_chunk::<4>()?;
        let mut words = words
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)));
        let mut word = || words.next();
        let (sequence, step, plan, count, len) = (word()?, word()?, word()?, word()?, word()?);
        let operation = MessageOperation {
            verb: *Verb::ALL.get(usize::from(*verb))?,
            sequence,
            step,
            plan,
            element: ElementType::from_code(*element)?,
            count: (*counted == 1).then_some(count),
        };
        let phase = *[Phase::First, Phase::Second].get(usize::from(*phase))?;
        Some(Self { channel: u32::from_le_bytes(*channel), operation, phase, len })
    }
}

/// A message from one rank to another.
#[derive(Debug)]
pub struct RankMessage {
    pub header: MessageHeader,
    pub payload: Load,
    /// Time at which the message reached this rank, or `None` before that.
    pub arrived: Option<Instant>,
}

impl RankMessage {
    /// Creates a message that is to be sent, or that is complete but not delivered yet.
    #[must_use]
    pub fn new(header: MessageHeader, payload: Load) -> Self {
        Self { header, payload, arrived: None }
    }
}
