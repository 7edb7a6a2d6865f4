//! The exchange of rows between ranks that are processes: each reads a part of the data.

use std::time::Duration;

use comm::Communicator;
use data::RowSharing;

/// Connects the loaders of this rank with those of the other ranks. All ranks must create their
/// loaders in the same order.
pub struct RowSharer {
    /// Creates communicators, and ends all waiting after a failure. It never carries a message.
    own: Communicator,
    /// Timeout of messages after the first exchange of a loader.
    timeout: Duration,
}

impl RowSharer {
    /// Creates the sharer of a rank that reads data of its own. The timeout of `comm` is that of
    /// the first exchange, for which ranks may have to wait longest.
    pub fn new(comm: &Communicator, timeout: Duration) -> Self {
        Self { own: comm.duplicate(), timeout }
    }

    /// Creates the sharing of a loader. Returns `None` if there is only one rank.
    pub fn share(&self) -> Option<RowSharing> {
        if self.own.world_size() == 1 {
            return None;
        }
        let (mut comm, leaving, timeout) =
            (self.own.duplicate(), self.own.duplicate(), self.timeout);
        Some(RowSharing {
            rank: self.own.rank().0,
            ranks: self.own.world_size() as u32,
            exchange: Box::new(move |parts| {
                comm.all_to_all(parts)?;
                comm.set_timeout(Some(timeout));
                Ok(())
            }),
            abandon: Box::new(move || leaving.leave()),
        })
    }
}
