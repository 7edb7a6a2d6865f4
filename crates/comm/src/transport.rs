//! The interface of transports, which carry messages between ranks. This file does not depend on
//! collectives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::element::Pool;
use crate::message::RankMessage;

/// One rank's access to a transport. Messages of one channel from one rank arrive in the order in
/// which they were sent.
pub trait Transport: Send + Sync {
    /// Returns the name of the transport, which is the value of the option `--transport`.
    fn name(&self) -> &'static str;

    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// Returns the name of this rank's host. Ranks that can share memory have the same name, which
    /// is empty for threads of one process.
    fn host_name(&self) -> &str {
        ""
    }

    /// Sends `message` to rank `to`, which may be this rank, without waiting until it is received.
    ///
    /// # Errors
    /// [`TransportFailure`] if the peer has left or the transport failed.
    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure>;

    /// Receives the next message of `channel` from rank `from`, waiting until `deadline`.
    ///
    /// # Errors
    /// [`TransportFailure`] if no message arrives in time, the peer has left or the transport
    /// failed.
    fn receive(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure>;

    /// Waits until [`Self::receive`] would return a message at once, or until `deadline`. Returns
    /// whether a message has arrived.
    ///
    /// # Errors
    /// [`TransportFailure`] if the peer has left or the transport failed.
    fn probe(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure>;

    /// Returns whether the transport can sum `f32` over all ranks with [`Self::sum`].
    fn sums(&self) -> bool {
        false
    }

    /// Sums `values` over all ranks in an order that the transport chooses, waiting until
    /// `deadline`. All ranks must call it equally often.
    ///
    /// # Errors
    /// [`TransportFailure`] if the sum is not ready in time or the transport failed.
    fn sum(&self, values: Vec<f32>, deadline: Deadline) -> Result<Vec<f32>, TransportFailure> {
        let _ = (values, deadline);
        Err(TransportFailure::Broken("this transport cannot sum values".to_owned()))
    }

    /// Ends all waiting of this rank, and tells peers that it sends no more.
    fn leave(&self);

    /// Returns the pool of buffers. Buffers of received messages are reused for sending.
    fn pool(&self) -> &Pool;
}

/// Implements the methods of [`Transport`] that a wrapper passes to its field `inner` unchanged.
#[macro_export]
macro_rules! pass_to_inner {
    () => {
        fn rank(&self) -> usize {
            self.inner.rank()
        }

        fn world_size(&self) -> usize {
            self.inner.world_size()
        }

        fn host_name(&self) -> &str {
            self.inner.host_name()
        }

        fn receive(
            &self,
            from: usize,
            channel: u32,
            deadline: Deadline,
        ) -> Result<RankMessage, TransportFailure> {
            self.inner.receive(from, channel, deadline)
        }

        fn probe(
            &self,
            from: usize,
            channel: u32,
            deadline: Deadline,
        ) -> Result<bool, TransportFailure> {
            self.inner.probe(from, channel, deadline)
        }

        fn leave(&self) {
            self.inner.leave();
        }

        fn pool(&self) -> &Pool {
            self.inner.pool()
        }
    };
}

/// The reason why a message was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportFailure {
    /// The peer has left.
    Left,
    /// No message arrived before the deadline.
    Late,
    /// The transport failed with this message.
    Broken(String),
}

/// The latest time until which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// The call waits without a limit.
    Never,
    At(Instant),
}

impl Deadline {
    /// Returns the deadline that is `timeout` from now, or none without a timeout.
    #[must_use]
    pub fn after(timeout: Option<Duration>) -> Self {
        // A time beyond the range of the clock never comes, so the call waits without a limit.
        timeout
            .and_then(|timeout| Instant::now().checked_add(timeout))
            .map_or(Self::Never, Self::At)
    }
}

/// A transport shared by all communicators of a rank.
pub type SharedTransport = Arc<dyn Transport>;
