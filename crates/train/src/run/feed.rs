//! The source of batches on all ranks except rank 0.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use data::{Loaded, Loader};
use schema::{Batch, Rank};

use super::loaders;
use super::request::RunRequest;
use super::sharing::RowSharer;
use super::start::StartState;
use crate::Error;
use crate::share::ReadBatch;

/// The source of a rank's batches, which come in the order in which rank 0 reads them.
pub enum Feed<'a> {
    /// Rank 0 is a thread of the same process and sends its batches.
    Handed(Receiver<Arc<Batch>>),
    /// This rank reads its samples itself.
    Read(Box<FollowingRank<'a>>),
}

/// A rank that reads its samples of the same batches in the same order as rank 0.
pub struct FollowingRank<'a> {
    request: &'a RunRequest,
    rank: Rank,
    sharer: RowSharer,
    training: Option<Loader>,
    held_out: Option<Loader>,
    /// The batch of the last step, kept until the next one is read.
    last: Option<ReadBatch>,
}

impl<'a> FollowingRank<'a> {
    /// Starts a loader at the starting point of the run.
    pub fn new(
        request: &'a RunRequest,
        start: &StartState,
        rank: Rank,
        sharer: RowSharer,
    ) -> Result<Self, Error> {
        let training = loaders::training_batches(request, start, sharer.share())?;
        Ok(Self { request, rank, sharer, training, held_out: None, last: None })
    }
}

impl Feed<'_> {
    /// Returns the batch of the next training step.
    pub fn train(&mut self) -> Result<ReadBatch, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => {
                // Drop the last batch before the next is read, to save the memory of one batch.
                let is_first = reader.last.take().is_none();
                let next = if is_first { loaders::first_batch } else { Loader::next };
                let batch = next_of(reader.rank, reader.training.as_mut(), next)?;
                reader.last = Some(batch.clone());
                Ok(batch)
            }
        }
    }

    /// Starts reading the held-out data.
    pub fn read_held_out(&mut self) -> Result<(), Error> {
        if let Self::Read(reader) = self {
            reader.held_out.take().into_iter().for_each(Loader::finish);
            let loader = loaders::held_out(reader.request, reader.sharer.share())?;
            reader.held_out = loader.map(|(loader, _)| loader);
        }
        Ok(())
    }

    /// Returns the next batch of held-out data.
    pub fn held_out(&mut self) -> Result<ReadBatch, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => next_of(reader.rank, reader.held_out.as_mut(), Loader::next),
        }
    }

    /// Returns the batch of the last training step again.
    pub fn last(&mut self) -> Result<ReadBatch, Error> {
        match self {
            Self::Handed(batches) => handed(batches),
            Self::Read(reader) => reader.last.clone().ok_or(Error::NoBatch { rank: reader.rank.0 }),
        }
    }

    /// Ends the loaders of a run that has succeeded.
    pub fn finish(self) {
        if let Self::Read(reader) = self {
            reader.training.into_iter().chain(reader.held_out).for_each(Loader::finish);
        }
    }
}

/// A function that reads a loader's next batch.
type Next = fn(&mut Loader) -> Option<Result<Loaded, data::Error>>;

fn next_of(rank: Rank, loader: Option<&mut Loader>, next: Next) -> Result<ReadBatch, Error> {
    let loaded = loader.and_then(next).ok_or(Error::NoBatch { rank: rank.0 })?;
    Ok(ReadBatch::from(loaded?))
}

fn handed(batches: &Receiver<Arc<Batch>>) -> Result<ReadBatch, Error> {
    // Rank 0 sends a batch before the command that uses it, so a closed channel means that rank 0
    // left.
    let left = comm::Error::PeerLeft { rank: 0, verb: comm::Verb::Broadcast.name() };
    batches.recv().map(ReadBatch::Whole).map_err(|_| Error::Communication(left))
}
