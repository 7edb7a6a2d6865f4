//! The source of a command's batches on ranks other than 0.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use data::{Loaded, Loader};
use schema::{Batch, Rank};

use super::command::Held;
use super::start::StartState;
use super::{RunRequest, lead};
use crate::Error;

/// The batches of all ranks, in the order in which rank 0 reads them.
pub enum Feed<'a> {
    /// Rank 0 is a thread of the same process and hands them over.
    Handed(Receiver<Arc<Batch>>),
    /// This rank reads them itself.
    Read(Box<FollowingRank<'a>>),
}

/// A rank that reads the same data in the same order as rank 0.
pub struct FollowingRank<'a> {
    request: &'a RunRequest,
    rank: Rank,
    training: Option<Loader>,
    held_out: Option<Loader>,
    /// The batch of the last step, until the next one is read.
    last: Option<Arc<Batch>>,
}

impl<'a> FollowingRank<'a> {
    /// Begins to read where the run begins.
    pub fn new(request: &'a RunRequest, start: &StartState, rank: Rank) -> Result<Self, Error> {
        let training = lead::batches(request, start)?;
        Ok(Self { request, rank, training, held_out: None, last: None })
    }
}

impl Feed<'_> {
    /// The batch of the next step.
    pub fn train(&mut self) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => {
                // Not kept beside the batch to come, which would be memory for one more.
                let is_first = reader.last.take().is_none();
                let next = if is_first { lead::first_of } else { Loader::next };
                let batch = next_of(reader.rank, reader.training.as_mut(), next)?;
                reader.last = Some(Arc::clone(&batch));
                Ok(batch)
            }
        }
    }

    /// A batch of held-out data.
    pub fn held_out(&mut self, held: Held) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => {
                if held == Held::First {
                    reader.held_out = lead::held_out(reader.request)?.map(|(loader, _)| loader);
                }
                next_of(reader.rank, reader.held_out.as_mut(), Loader::next)
            }
        }
    }

    /// The batch of the last step.
    pub fn last(&mut self) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => reader.last.clone().ok_or(Error::NoBatch { rank: reader.rank.0 }),
        }
    }
}

/// How a loader gives its next batch.
type Next = fn(&mut Loader) -> Option<Result<Loaded, data::Error>>;

fn next_of(rank: Rank, loader: Option<&mut Loader>, next: Next) -> Result<Arc<Batch>, Error> {
    let loaded = loader.and_then(next).ok_or(Error::NoBatch { rank: rank.0 })?;
    Ok(Arc::new(loaded?.batch))
}

fn handed(batches: &Receiver<Arc<Batch>>) -> Result<Arc<Batch>, Error> {
    // Rank 0 hands a batch over before it says what to do with it.
    let left = comm::Error::PeerLeft { rank: 0, verb: comm::Verb::Broadcast.name() };
    batches.recv().map_err(|_| Error::Communication(left))
}
