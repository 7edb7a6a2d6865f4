//! The windows of a loader, in order, and the threads that decode their row groups ahead of use.

use std::collections::VecDeque;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::dataset::Dataset;
use crate::error::Error;
use crate::load::gather::{DecodedRows, Features};
use crate::load::shuffle::{GroupPiece, GroupWindow, Position, RankShare, ShuffleOrder};

/// Largest number of decoder threads. Decoders are busy only while a window is filled, and training
/// waits only for the first window.
const DECODE_THREADS_MOST: usize = 8;
/// Smallest number of rows per decoder, because decoders that share a page each decompress it.
pub(crate) const PIECE_ROWS_LEAST: usize = 2048;

/// Number of pieces that are being decoded or queued, rounded up to whole windows.
pub(crate) fn pieces_ahead(decoders: usize) -> usize {
    // One piece waits in the queue, so that a decoder that finishes can continue at once.
    decoders + 1
}

pub(crate) fn decode_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    // Even on one core, two decoders overlap waiting for the disk with decoding.
    cores.clamp(2, DECODE_THREADS_MOST)
}

/// Iterates over the windows of all epochs, starting at a position.
pub(crate) struct WindowIter {
    order: ShuffleOrder,
    start: Position,
    /// Total number of epochs, including those before `start`.
    epochs: Option<u64>,
    /// Number of batches to read from `start` on.
    batches: Option<u64>,
    epoch: u64,
    left: std::vec::IntoIter<GroupWindow>,
}

impl WindowIter {
    pub(crate) fn from(
        order: ShuffleOrder,
        start: &Position,
        epochs: Option<u64>,
        batches: Option<u64>,
    ) -> Self {
        let ended = epochs.is_some_and(|epochs| start.epoch >= epochs);
        let mut windows = if ended { Vec::new() } else { order.windows(start.epoch).0 };
        // Windows before the start are skipped without decoding them.
        windows.drain(..(start.window as usize).min(windows.len()));
        let (epoch, start) = (start.epoch, start.clone());
        Self { order, start, epochs, batches, epoch, left: windows.into_iter() }
    }
}

impl Iterator for WindowIter {
    type Item = GroupWindow;

    fn next(&mut self) -> Option<GroupWindow> {
        let window = match self.left.next() {
            Some(window) => window,
            None if self.epochs.is_some_and(|epochs| self.epoch + 1 >= epochs) => return None,
            None => {
                self.epoch += 1;
                self.left = self.order.windows(self.epoch).0.into_iter();
                self.left.next()?
            }
        };
        let first_batch = self.order.first_batch_of(&window, &self.start);
        self.batches.is_none_or(|batches| first_batch < batches).then_some(window)
    }
}

/// A piece to decode, and the channel for its result.
pub(crate) type DecodeTask = (GroupPiece, Sender<Result<DecodedRows, Error>>);

/// Results of the pieces of a window, in order, as they are decoded.
type PendingPieces = Vec<Receiver<Result<DecodedRows, Error>>>;

/// The source of the decoded row groups of a window that this rank reads.
pub(crate) enum WindowGroups {
    Pending(PendingPieces),
    /// Reuses the row groups of the previous window in their new places. Every epoch of a small
    /// dataset is such a window.
    Reused(Vec<usize>),
}

/// Windows that are decoded ahead of the one in use. If ranks share the reading, each decodes its
/// own pieces of a window.
pub(crate) struct DecodeQueue {
    windows: WindowIter,
    share: RankShare,
    jobs: Sender<DecodeTask>,
    submitted: VecDeque<(GroupWindow, WindowGroups)>,
    /// Own pieces of the window submitted last.
    last: Vec<GroupPiece>,
    /// Number of pieces per row group, which is above one if an epoch has fewer row groups than
    /// there are decoders.
    pieces_per_group: usize,
    /// Number of pieces of all ranks to keep in flight, rounded up to whole windows.
    pieces: usize,
    dir: PathBuf,
}

impl DecodeQueue {
    /// Creates the queue of one rank's pieces of `windows`, and the tasks for its decoders.
    pub(crate) fn new(
        dataset: &Dataset,
        windows: WindowIter,
        share: RankShare,
    ) -> (Self, Receiver<DecodeTask>) {
        let (jobs, tasks) = unbounded();
        let decoders = decode_threads();
        let groups = windows.order.groups() as usize;
        let queue = Self {
            windows,
            jobs,
            submitted: VecDeque::new(),
            last: Vec::new(),
            // A dataset with few row groups is divided further, so that every decoder has work.
            // Ranks share whole row groups, because each part of a divided page decompresses it.
            pieces_per_group: if share.ranks > 1 { 1 } else { decoders.div_ceil(groups) },
            pieces: pieces_ahead(decoders) * share.ranks as usize,
            dir: dataset.dir().to_owned(),
            share,
        };
        (queue, tasks)
    }

    /// Returns the next window, whose row groups are being decoded.
    pub(crate) fn next(&mut self) -> Option<(GroupWindow, WindowGroups)> {
        if self.submitted.is_empty() {
            self.submit_window();
        }
        self.submitted.pop_front()
    }

    /// Gives the next windows to the decoder threads until enough pieces are queued, and does not
    /// wait for the results.
    pub(crate) fn prefetch(&mut self) {
        let pieces = |(window, _): &(GroupWindow, _)| window.pieces.len();
        while self.submitted.iter().map(pieces).sum::<usize>() < self.pieces && self.submit_window()
        {
        }
    }

    /// Waits for the row groups of a window. `before` holds those of the previous window.
    pub(crate) fn decoded(
        &self,
        groups: WindowGroups,
        before: Vec<DecodedRows>,
    ) -> Result<Vec<DecodedRows>, Error> {
        let lost = || Error::LoaderStopped { path: self.dir.clone() };
        match groups {
            WindowGroups::Pending(answers) => {
                // The next window is already being decoded, so memory must not hold a third.
                drop(before);
                let arrived = |answer: &Receiver<_>| answer.recv().unwrap_or_else(|_| Err(lost()));
                answers.iter().map(arrived).collect()
            }
            WindowGroups::Reused(places) => {
                let mut before: Vec<_> = places.into_iter().zip(before).collect();
                before.sort_unstable_by_key(|(place, _)| *place);
                Ok(before.into_iter().map(|(_, decoded)| decoded).collect())
            }
        }
    }

    /// Submits the next window. Returns false if there is none.
    fn submit_window(&mut self) -> bool {
        let Some(window) = self.windows.next() else { return false };
        let window = window.divided(self.pieces_per_group, PIECE_ROWS_LEAST);
        let own = window.own_pieces(self.share);
        let last = std::mem::replace(&mut self.last, own);
        let groups = match find_reused(&last, &self.last) {
            Some(places) => WindowGroups::Reused(places),
            None => {
                let answers = self.last.iter().map(|piece| {
                    let (answer, result) = bounded(1);
                    // The decoders run until this sender is dropped. If a decoder panics, its
                    // result is missing.
                    let _ = self.jobs.send((piece.clone(), answer));
                    result
                });
                WindowGroups::Pending(answers.collect())
            }
        };
        self.submitted.push_back((window, groups));
        true
    }
}

/// Finds the place of each of `pieces` among `wanted`. Returns `None` unless both have the same
/// pieces.
fn find_reused(pieces: &[GroupPiece], wanted: &[GroupPiece]) -> Option<Vec<usize>> {
    if pieces.len() != wanted.len() {
        return None;
    }
    pieces.iter().map(|piece| wanted.iter().position(|other| other == piece)).collect()
}

/// Starts the threads that decode the pieces of `tasks`.
pub(crate) fn spawn_decoders(
    dataset: &Dataset,
    features: &Arc<Features>,
    tasks: &Receiver<DecodeTask>,
) -> impl Iterator<Item = JoinHandle<()>> {
    (0..decode_threads()).map(|_| {
        let (dataset, features, tasks) = (dataset.clone(), Arc::clone(features), tasks.clone());
        std::thread::spawn(move || {
            for (piece, answer) in tasks {
                // The send fails if the loader was dropped.
                let _ = answer.send(DecodedRows::read(&dataset, &piece, &features));
            }
        })
    })
}
