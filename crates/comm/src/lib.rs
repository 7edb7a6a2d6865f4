//! Many devices: the six collectives of a training job, over the ranks of one communicator.
//!
//! Reductions add in rank order, so a result does not depend on which rank came first. A rank that
//! leaves ends its peers' collectives with an error instead of leaving them waiting.
//! Knows nothing of tables, batches or plans.

mod in_process;

pub use in_process::{Communicator, world};

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A peer dropped its communicator, usually after an error of its own.
    #[error("rank {rank} left the job during {verb}")]
    PeerLeft {
        /// The peer.
        rank: u32,
        /// The collective this rank was in.
        verb: &'static str,
    },
    /// Two ranks were not in the same collective: a fault of the program.
    #[error("rank {rank} is in collective {got}, expected {expected}")]
    Mismatch {
        /// The peer.
        rank: u32,
        /// What this rank is doing, with its sequence number.
        expected: String,
        /// What the peer sent.
        got: String,
    },
    /// A message has the wrong length.
    #[error("{verb}: expected {expected} values from rank {rank}, got {got}")]
    Length {
        /// The collective.
        verb: &'static str,
        /// The peer.
        rank: u32,
        /// Values expected.
        expected: usize,
        /// Values received.
        got: usize,
    },
}
