//! Errors that collectives report.

use std::time::Duration;

use schema::HostLayoutError;

/// Errors of a collective. After the first one, every later call on the same communicator fails
/// with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection to a peer ended. The peer dropped its communicator or was killed, possibly by
    /// a launcher that ends the job. This rank cannot tell a dropped communicator from a killed
    /// process.
    #[error("the connection to rank {rank} ended during {verb}")]
    PeerLeft {
        rank: u32,
        /// The collective that this rank was in.
        verb: &'static str,
    },
    /// Two ranks were in different collectives, or disagreed on its parameters. The cause is a
    /// defect of the program, or different arguments of the ranks.
    #[error("rank {here} is in {expected}; rank {there} is in {got}")]
    Mismatch { here: u32, expected: String, there: u32, got: String },
    /// A message has the wrong length.
    #[error("{verb}: expected {expected} values from rank {rank}, got {got}")]
    Length { verb: &'static str, rank: u32, expected: usize, got: usize },
    /// A peer did not send in time, because it hangs, died, or is still computing.
    #[error(
        "rank {here} waited {} s for rank {rank} in {operation}", waited.as_secs()
    )]
    Timeout {
        here: u32,
        rank: u32,
        /// The operation that this rank was in.
        operation: String,
        waited: Duration,
    },
    /// The ranks cannot be grouped by host as an exchange needs it.
    #[error(transparent)]
    Hosts(#[from] HostLayoutError),
    /// Two ranks have different host layouts, for example because their command lines differ.
    #[error(
        "rank {here} has rank {rank} on host {expected}; rank {there} has it on host {got}; \
         start all ranks with the same options"
    )]
    HostMismatch { here: u32, there: u32, rank: u32, expected: u32, got: u32 },
    /// The transport failed, and no more messages can arrive.
    #[error("{transport}: {problem}")]
    Transport { transport: &'static str, problem: String },
}
