//! The transport between ranks that are threads of one process.
//!
//! Buffers are moved to the receiver or shared with it, and nothing is serialized. This transport
//! is the reference for all others, because it needs no network.

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::element::Pool;
use crate::mailbox::Mailbox;
use crate::message::RankMessage;
use crate::transport::{Deadline, Transport, TransportFailure};

/// The transport between ranks that are threads of one process. Buffers are moved, not copied.
pub struct InProcess {
    rank: usize,
    mailboxes: Arc<[Mailbox]>,
    pool: Pool,
}

impl InProcess {
    /// Creates the ends of a transport of `size` ranks, in rank order.
    #[must_use]
    pub fn ends(size: u32) -> Vec<Self> {
        let mailboxes: Arc<[Mailbox]> = (0..size).map(|_| Mailbox::new(size as usize)).collect();
        let end = |rank| Self { rank, mailboxes: Arc::clone(&mailboxes), pool: Pool::default() };
        (0..size as usize).map(end).collect()
    }
}

/// Creates a communicator for each of `size` ranks of this process, in rank order.
#[must_use]
pub fn world(size: u32) -> Vec<Communicator> {
    InProcess::ends(size).into_iter().map(|end| Communicator::over(Arc::new(end))).collect()
}

impl Transport for InProcess {
    fn name(&self) -> &'static str {
        "in_process"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mailboxes.len()
    }

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        self.mailboxes[to].put(self.rank, message);
        Ok(())
    }

    fn receive(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure> {
        self.mailboxes[self.rank].take(from, channel, deadline)
    }

    fn probe(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure> {
        self.mailboxes[self.rank].look(from, channel, deadline)
    }

    fn leave(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.close(self.rank));
        self.mailboxes[self.rank].fail("this rank has left".to_owned());
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        for mailbox in self.mailboxes.iter() {
            mailbox.close(self.rank);
        }
    }
}
