//! The exchange of rows between ranks that are processes: each reads a part of the data.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comm::Communicator;
use data::RowSharing;

use crate::Error;

/// The first failure of an exchange of rows, for the thread that runs the steps.
pub type ExchangeFailure = Arc<OnceLock<comm::Error>>;

/// Connects the loaders of this rank with those of the other ranks. All ranks must create their
/// loaders in the same order.
pub struct RowSharer {
    /// Creates communicators. It never carries a message.
    own: Communicator,
    /// Timeout of messages after the first exchange of a loader.
    timeout: Duration,
    failure: ExchangeFailure,
}

impl RowSharer {
    /// Creates the sharer of a rank that reads data of its own. The timeout of `comm` is that of
    /// the first exchange, for which ranks may have to wait longest.
    pub fn new(comm: &Communicator, timeout: Duration) -> Self {
        Self { own: comm.duplicate(), timeout, failure: ExchangeFailure::default() }
    }

    /// Returns the place of the first failure, for [`explain`].
    pub fn failure(&self) -> ExchangeFailure {
        Arc::clone(&self.failure)
    }

    /// Creates the sharing of a loader. Returns `None` if there is only one rank.
    pub fn share(&self) -> Option<RowSharing> {
        if self.own.world_size() == 1 {
            return None;
        }
        let (mut comm, leaving) = (self.own.duplicate(), self.own.duplicate());
        let (timeout, failure) = (self.timeout, self.failure());
        Some(RowSharing {
            rank: self.own.rank().0,
            ranks: self.own.world_size() as u32,
            exchange: Box::new(move |parts| {
                if let Err(error) = comm.all_to_all(parts) {
                    // The other ranks may wait for rows of this one, while this one waits for a
                    // command of rank 0.
                    failure.get_or_init(|| error.clone());
                    comm.leave();
                    return Err(error.into());
                }
                comm.set_timeout(Some(timeout));
                Ok(())
            }),
            abandon: Box::new(move || leaving.leave()),
        })
    }
}

/// Returns the failed exchange of rows that made this rank leave, or else `error`.
pub fn explain(error: Error, failure: &ExchangeFailure) -> Error {
    failure.get().cloned().map_or(error, Error::Communication)
}
