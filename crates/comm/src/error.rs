//! Why a collective failed.

use std::time::Duration;

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection to a peer ended: the peer dropped its communicator or was killed, or a
    /// launcher that ends the job took it away. Which of these it was cannot be seen from here.
    #[error("the connection to rank {rank} ended during {verb}")]
    PeerLeft {
        rank: u32,
        /// The collective this rank was in.
        verb: &'static str,
    },
    /// Two ranks were not in the same collective, or not with the same values: a fault of the
    /// program, or ranks that were started with different arguments.
    #[error("rank {here} is in {expected}; rank {there} is in {got}")]
    Mismatch {
        here: u32,
        /// What this rank is doing.
        expected: String,
        there: u32,
        /// What the peer sent.
        got: String,
    },
    /// A message has the wrong length.
    #[error("{verb}: expected {expected} values from rank {rank}, got {got}")]
    Length { verb: &'static str, rank: u32, expected: usize, got: usize },
    /// A peer did not send in time: it hangs, died, or still computes.
    #[error(
        "rank {here} waited {} s for rank {rank} in {operation}", waited.as_secs()
    )]
    Timeout {
        here: u32,
        rank: u32,
        /// The operation this rank was in.
        operation: String,
        /// How long it waited.
        waited: Duration,
    },
    /// What carries the messages failed.
    #[error("{transport}: {problem}")]
    Transport { transport: &'static str, problem: String },
}

#[cfg(test)]
mod tests {
    use super::Error;

    /// Under MPICH with `-disable-auto-cleanup`, a rank whose launcher ended it looks like one that
    /// was killed: what is said of it holds for both.
    #[test]
    fn a_lost_connection_is_said_and_no_rank_is_blamed() {
        let text = Error::PeerLeft { rank: 1, verb: "barrier" }.to_string();
        assert_eq!(text, "the connection to rank 1 ended during barrier");
        for guess in ["left", "killed", "died", "crashed", "failed"] {
            assert!(!text.contains(guess), "{guess}: {text}");
        }
    }
}
