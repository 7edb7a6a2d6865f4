//! The source of batches on all ranks except rank 0.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use data::{Loaded, Loader};
use schema::{Batch, Rank};

use super::command::HeldOutBatch;
use super::loaders;
use super::request::RunRequest;
use super::start::StartState;
use crate::Error;

/// The source of a rank's batches, which come in the order in which rank 0 reads them.
pub enum Feed<'a> {
    /// Rank 0 is a thread of the same process and sends its batches.
    Handed(Receiver<Arc<Batch>>),
    /// This rank reads the batches itself.
    Read(Box<FollowingRank<'a>>),
}

/// A rank that reads the same data in the same order as rank 0.
pub struct FollowingRank<'a> {
    request: &'a RunRequest,
    rank: Rank,
    training: Option<Loader>,
    held_out: Option<Loader>,
    /// The batch of the last step, kept until the next one is read.
    last: Option<Arc<Batch>>,
}

impl<'a> FollowingRank<'a> {
    /// Starts a loader at the starting point of the run.
    pub fn new(request: &'a RunRequest, start: &StartState, rank: Rank) -> Result<Self, Error> {
        let training = loaders::training_batches(request, start)?;
        Ok(Self { request, rank, training, held_out: None, last: None })
    }
}

impl Feed<'_> {
    /// Returns the batch of the next training step.
    pub fn train(&mut self) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => {
                // Drop the last batch before the next is read, to save the memory of one batch.
                let is_first = reader.last.take().is_none();
                let next = if is_first { loaders::first_batch } else { Loader::next };
                let batch = next_of(reader.rank, reader.training.as_mut(), next)?;
                reader.last = Some(Arc::clone(&batch));
                Ok(batch)
            }
        }
    }

    /// Returns a batch of held-out data.
    pub fn held_out(&mut self, held: HeldOutBatch) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => {
                if held == HeldOutBatch::First {
                    reader.held_out = loaders::held_out(reader.request)?.map(|(loader, _)| loader);
                }
                next_of(reader.rank, reader.held_out.as_mut(), Loader::next)
            }
        }
    }

    /// Returns the batch of the last training step again.
    pub fn last(&mut self) -> Result<Arc<Batch>, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => reader.last.clone().ok_or(Error::NoBatch { rank: reader.rank.0 }),
        }
    }
}

/// A function that reads a loader's next batch.
type Next = fn(&mut Loader) -> Option<Result<Loaded, data::Error>>;

fn next_of(rank: Rank, loader: Option<&mut Loader>, next: Next) -> Result<Arc<Batch>, Error> {
    let loaded = loader.and_then(next).ok_or(Error::NoBatch { rank: rank.0 })?;
    Ok(Arc::new(loaded?.batch))
}

fn handed(batches: &Receiver<Arc<Batch>>) -> Result<Arc<Batch>, Error> {
    // Rank 0 sends a batch before the command that uses it, so a closed channel means that rank 0
    // left.
    let left = comm::Error::PeerLeft { rank: 0, verb: comm::Verb::Broadcast.name() };
    batches.recv().map_err(|_| Error::Communication(left))
}
