//! What carries messages between ranks. Knows nothing of collectives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::element::Pool;
use crate::message::RankMessage;

/// Moves messages between ranks: one end of it, that of one rank. Messages of one channel from one
/// rank arrive in the order in which they were sent.
pub trait Transport: Send + Sync {
    /// Its name, as `--transport` takes it.
    fn name(&self) -> &'static str;

    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// Sends `message` to rank `to`, which may be this one. Does not wait for it to be received.
    ///
    /// # Errors
    /// [`TransportFailure`].
    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure>;

    /// The next message of `channel` from rank `from`; waits for it until `deadline`.
    ///
    /// # Errors
    /// [`TransportFailure`].
    fn receive(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure>;

    /// Whether [`Self::receive`] would return at once; waits until `deadline` for that.
    ///
    /// # Errors
    /// [`TransportFailure`].
    fn probe(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure>;

    /// Whether it can add up `f32` over all ranks by itself: [`Self::sum`].
    fn sums(&self) -> bool {
        false
    }

    /// The sum of `values` over all ranks, in an order of the transport's own, in another buffer.
    /// All ranks call it as often; waits until `deadline`.
    ///
    /// # Errors
    /// [`TransportFailure`].
    fn sum(&self, values: Vec<f32>, deadline: Deadline) -> Result<Vec<f32>, TransportFailure> {
        let _ = (values, deadline);
        Err(TransportFailure::Broken("adds nothing up".to_owned()))
    }

    /// Buffers of messages received, to be used for those to be sent.
    fn pool(&self) -> &Pool;
}

/// Why a message was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportFailure {
    /// The peer is no longer there.
    Left,
    /// Nothing came until the deadline.
    Late,
    /// What carries the messages failed, and said this.
    Broken(String),
}

/// Until when is waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// As long as it takes.
    Never,
    At(Instant),
}

impl Deadline {
    /// The deadline after `timeout` from now; none without.
    #[must_use]
    pub fn after(timeout: Option<Duration>) -> Self {
        // A time that no clock can tell does not come.
        timeout
            .and_then(|timeout| Instant::now().checked_add(timeout))
            .map_or(Self::Never, Self::At)
    }
}

/// An end shared by the communicators of a rank.
pub type SharedTransport = Arc<dyn Transport>;
