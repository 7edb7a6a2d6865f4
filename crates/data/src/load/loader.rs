//! Loads batches of a dataset in a deterministic order. Background threads decode ahead of the
//! training loop.
//!
//! One thread assembles batches and keeps a few ready. Up to eight threads decode row groups, at
//! most one window ahead. If a window has the same row groups as the one before, it is not decoded
//! again. `shuffle` defines the order and `gather` assembles the batches.

mod memory;

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use schema::Batch;

use crate::dataset::Dataset;
use crate::error::Error;
use crate::load::gather::{BatchBuilder, DecodedRows, FeaturePlan, Features, IdsRead};
use crate::load::shuffle::{GroupPiece, GroupWindow, Position, ShuffleOrder};
use crate::parse::ids::IdsOutside;

pub use memory::{LoaderMemory, LoaderShape};

/// Number of samples kept ready ahead of the batch in use, but at least two batches. Small batches
/// are used up before a thread gets its turn on a busy machine.
const SAMPLES_AHEAD: usize = 1 << 14;
/// Bytes of the batches kept ready, but at least two batches. With a thousand features a batch
/// takes 16 KiB per sample, and a step takes long enough to assemble the next batch meanwhile.
const BYTES_AHEAD: usize = 64 << 20;
/// Number of samples sent together, but at least one batch. Receiving from a full queue wakes a
/// thread, which costs about 20 µs. A step on small batches cannot afford more.
const SAMPLES_TOGETHER: usize = SAMPLES_AHEAD / 8;
/// Largest number of decoder threads. Decoders are busy only while a window is filled, and training
/// waits only for the first window.
const DECODE_THREADS_MOST: usize = 8;
/// Smallest number of rows per decoder, because decoders that share a page each decompress it.
const PIECE_ROWS_LEAST: usize = 2048;

/// A shuffle of rows within a buffer of limited size. The same seed gives the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    pub seed: u64,
    /// Rows in the shuffle buffer, rounded up to whole row groups.
    pub buffer_rows: usize,
}

/// The rows that a [`Loader`] reads, their order, and the way they are batched.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    pub batch_size: usize,
    /// Shuffle of the rows; without a shuffle, rows keep the order of the dataset.
    pub shuffle: Option<Shuffle>,
    /// Whether to drop the last, smaller batch of an epoch.
    pub drop_last: bool,
    /// Rows to read; `0..dataset.rows()` for all rows.
    pub rows: Range<u64>,
    /// Position of the first batch; [`Position::default`] for the beginning.
    pub start: Position,
    /// Total number of epochs, including those before `start`; `None` for no end.
    pub epochs: Option<u64>,
}

/// A batch, and the position from which loading can resume after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub batch: Batch,
    pub position: Position,
}

/// An iterator over batches. The iterator ends after an error, and dropping it stops its threads.
pub struct Loader {
    dir: PathBuf,
    /// Batches that arrived together and are not yet returned.
    ready: std::vec::IntoIter<Loaded>,
    /// Channel of the batches, which is dropped once the loader has ended.
    batches: Option<Receiver<LoaderMessage>>,
    threads: Vec<JoinHandle<()>>,
    order: ShuffleOrder,
    features: Arc<Features>,
    read: Arc<Mutex<Vec<IdsRead>>>,
}

/// Messages of the assembling thread to the iterator.
enum LoaderMessage {
    Batches(Vec<Loaded>),
    Failed(Error),
    End,
}

impl Loader {
    /// Starts the threads that decode and assemble batches of `dataset`.
    ///
    /// # Errors
    /// Returns [`Error::MissingColumn`] or [`Error::TableTooSmall`] for the features,
    /// [`Error::Config`] for invalid options, and [`Error::PositionMismatch`] if `start` was saved
    /// with other options.
    pub fn start(
        dataset: &Dataset,
        features: &FeaturePlan,
        options: LoaderOptions,
    ) -> Result<Self, Error> {
        let features = Arc::new(Features::new(features, dataset.fitted(), dataset.dir())?);
        let order = build_order(dataset, &options)?;
        let start = order.resume(&options.start)?;
        let together = batches_together(options.batch_size);
        let (sender, batches) = bounded(batches_ahead(features.count(), options.batch_size));
        let outbox = Outbox { batches: Vec::new(), size: 1, most: together, sender };
        let (jobs, tasks) = unbounded::<DecodeTask>();
        let decoders = decode_threads();
        let queue = DecodeQueue {
            windows: WindowIter::from(order, &start, options.epochs),
            jobs,
            submitted: VecDeque::new(),
            last: Vec::new(),
            // A dataset with few row groups is divided further, so that every decoder has work.
            pieces_per_group: decoders.div_ceil(order.groups() as usize),
            pieces: pieces_ahead(decoders),
            dir: dataset.dir().to_owned(),
        };
        let mut threads = Vec::with_capacity(decoders + 1);
        // The assembling thread starts first: it submits the decoding tasks, and training waits for
        // its first batch.
        let shared = Arc::clone(&features);
        let read = Arc::new(Mutex::new(vec![IdsRead::default(); features.len()]));
        let first = FirstEpoch { epoch: start.epoch, read: Arc::clone(&read) };
        threads.push(std::thread::spawn(move || {
            assemble(order, &shared, &start, queue, outbox, &first);
        }));
        for _ in 0..decoders {
            let (dataset, features) = (dataset.clone(), Arc::clone(&features));
            let tasks = tasks.clone();
            threads.push(std::thread::spawn(move || {
                for (piece, answer) in tasks {
                    // The send fails if the loader was dropped.
                    let _ = answer.send(DecodedRows::read(&dataset, &piece, &features));
                }
            }));
        }
        let (dir, ready) = (dataset.dir().to_owned(), Vec::new().into_iter());
        Ok(Self { dir, ready, batches: Some(batches), threads, order, features, read })
    }

    /// Reports ids outside their tables, per counted column, among the rows of the loader's first
    /// epoch. Later epochs read the same rows.
    #[must_use]
    pub fn ids_outside(&self) -> Vec<IdsOutside> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        self.features.ids_outside(&read)
    }

    /// Whether an epoch fits in one window, whose rows are decoded once before the first batch and
    /// then kept.
    #[must_use]
    pub fn is_one_window(&self) -> bool {
        self.order.windows(0).0.len() == 1
    }
}

impl Iterator for Loader {
    type Item = Result<Loaded, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(loaded) = self.ready.next() {
            return Some(Ok(loaded));
        }
        let message = self.batches.as_ref()?.recv();
        let end = match message {
            Ok(LoaderMessage::Batches(batches)) => {
                self.ready = batches.into_iter();
                return self.ready.next().map(Ok);
            }
            Ok(LoaderMessage::Failed(error)) => Some(Err(error)),
            Ok(LoaderMessage::End) => None,
            Err(_) => Some(Err(Error::LoaderStopped { path: self.dir.clone() })),
        };
        self.batches = None;
        end
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.batches = None;
        for thread in self.threads.drain(..) {
            // A panic of the thread has already ended the iterator with an error.
            let _ = thread.join();
        }
    }
}

/// Number of batches that are sent together.
fn batches_together(batch_size: usize) -> usize {
    (SAMPLES_TOGETHER / batch_size).max(1)
}

/// Number of groups of batches that are kept ready ahead of the batch in use.
fn batches_ahead(features: usize, batch_size: usize) -> usize {
    let together = batches_together(batch_size) * batch_size;
    // Each feature of a sample has at least one id and one bag length, of 8 bytes each.
    let bytes = together.saturating_mul((features * 16).max(1));
    (SAMPLES_AHEAD / together).min(BYTES_AHEAD / bytes).max(2)
}

/// Number of pieces that are being decoded or queued, rounded up to whole windows.
fn pieces_ahead(decoders: usize) -> usize {
    // One piece waits in the queue, so that a decoder that finishes can continue at once.
    decoders + 1
}

fn decode_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    // Even on one core, two decoders overlap waiting for the disk with decoding.
    cores.clamp(2, DECODE_THREADS_MOST)
}

fn build_order(dataset: &Dataset, options: &LoaderOptions) -> Result<ShuffleOrder, Error> {
    let refuse = |key, problem| Err(Error::Config { key, problem });
    if options.batch_size == 0 {
        return refuse("batch_size", "expected at least 1, got 0".to_owned());
    }
    let Range { start, end } = options.rows;
    if start >= end || end > dataset.rows() {
        let text = format!("expected a part of 0..{}, got {start}..{end}", dataset.rows());
        return refuse("rows", text);
    }
    let order = ShuffleOrder {
        seed: options.shuffle.map(|shuffle| shuffle.seed),
        buffer_rows: options.shuffle.map_or(0, |shuffle| shuffle.buffer_rows as u64),
        batch_size: options.batch_size as u64,
        drop_last: options.drop_last,
        first_row: start,
        end_row: end,
        row_group_rows: dataset.manifest().row_group_rows,
    };
    if order.batches() == 0 {
        let text = format!(
            "{} does not fill one batch from {} rows, and the last one is dropped",
            options.batch_size,
            order.rows()
        );
        return refuse("batch_size", text);
    }
    Ok(order)
}

/// Iterates over the windows of all epochs, starting at a position.
struct WindowIter {
    order: ShuffleOrder,
    epochs: Option<u64>,
    epoch: u64,
    left: std::vec::IntoIter<GroupWindow>,
}

impl WindowIter {
    fn from(order: ShuffleOrder, start: &Position, epochs: Option<u64>) -> Self {
        let ended = epochs.is_some_and(|epochs| start.epoch >= epochs);
        let mut windows = if ended { Vec::new() } else { order.windows(start.epoch).0 };
        // Windows before the start are skipped without decoding them.
        windows.drain(..(start.window as usize).min(windows.len()));
        Self { order, epochs, epoch: start.epoch, left: windows.into_iter() }
    }
}

impl Iterator for WindowIter {
    type Item = GroupWindow;

    fn next(&mut self) -> Option<GroupWindow> {
        if let Some(window) = self.left.next() {
            return Some(window);
        }
        if self.epochs.is_some_and(|epochs| self.epoch + 1 >= epochs) {
            return None;
        }
        self.epoch += 1;
        self.left = self.order.windows(self.epoch).0.into_iter();
        self.left.next()
    }
}

/// A piece to decode, and the channel for its result.
type DecodeTask = (GroupPiece, Sender<Result<DecodedRows, Error>>);

/// Results of the pieces of a window, in order, as they are decoded.
type PendingPieces = Vec<Receiver<Result<DecodedRows, Error>>>;

/// The source of the decoded row groups of a window.
enum WindowGroups {
    Pending(PendingPieces),
    /// Reuses the row groups of the previous window in their new places. Every epoch of a small
    /// dataset is such a window.
    Reused(Vec<usize>),
}

/// Windows that are decoded ahead of the one in use.
struct DecodeQueue {
    windows: WindowIter,
    jobs: Sender<DecodeTask>,
    submitted: VecDeque<(GroupWindow, WindowGroups)>,
    /// Pieces of the window submitted last.
    last: Vec<GroupPiece>,
    /// Number of pieces per row group, which is above one if an epoch has fewer row groups than
    /// there are decoders.
    pieces_per_group: usize,
    /// Number of pieces to keep in flight, rounded up to whole windows.
    pieces: usize,
    dir: PathBuf,
}

impl DecodeQueue {
    /// Returns the next window, whose row groups are being decoded.
    fn next(&mut self) -> Option<(GroupWindow, WindowGroups)> {
        self.submit(1);
        self.submitted.pop_front()
    }

    /// Submits the windows that follow for decoding, without waiting for them.
    fn prefetch(&mut self) {
        self.submit(self.pieces);
    }

    /// Waits for the row groups of a window. `before` holds those of the previous window.
    fn decoded(
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

    /// Submits windows until at least `pieces` pieces are in flight.
    fn submit(&mut self, pieces: usize) {
        while self.submitted.iter().map(|(window, _)| window.pieces.len()).sum::<usize>() < pieces {
            let Some(window) = self.windows.next() else { return };
            let window = window.divided(self.pieces_per_group, PIECE_ROWS_LEAST);
            let last = std::mem::replace(&mut self.last, window.pieces.clone());
            if let Some(places) = find_reused(&last, &window.pieces) {
                self.submitted.push_back((window, WindowGroups::Reused(places)));
                continue;
            }
            let answers = window.pieces.iter().map(|piece| {
                let (answer, result) = bounded(1);
                // The decoders run until this sender is dropped. If a decoder panics, its result
                // is missing.
                let _ = self.jobs.send((piece.clone(), answer));
                result
            });
            let groups = WindowGroups::Pending(answers.collect());
            self.submitted.push_back((window, groups));
        }
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

/// Groups batches before they are sent. The first batch is sent alone to cut start-up latency, and
/// then the size of the groups doubles.
struct Outbox {
    batches: Vec<Loaded>,
    size: usize,
    most: usize,
    sender: Sender<LoaderMessage>,
}

/// Error of a send after the loader was dropped.
struct Dropped;

impl Outbox {
    fn push(&mut self, loaded: Loaded) -> Result<(), Dropped> {
        self.batches.push(loaded);
        if self.batches.len() < self.size {
            return Ok(());
        }
        self.size = (2 * self.size).min(self.most);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Dropped> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(self.size);
        let batches = std::mem::replace(&mut self.batches, next);
        self.sender.send(LoaderMessage::Batches(batches)).map_err(|_| Dropped)
    }

    fn is_full(&self) -> bool {
        self.sender.is_full()
    }

    fn end(mut self, message: LoaderMessage) {
        if self.flush().is_ok() {
            // A failed send means that the loader was dropped.
            let _ = self.sender.send(message);
        }
    }
}

/// Counts of ids, summed over the first epoch of a loader.
struct FirstEpoch {
    epoch: u64,
    read: Arc<Mutex<Vec<IdsRead>>>,
}

impl FirstEpoch {
    fn count(&self, epoch: u64, decoded: &[DecodedRows]) {
        if epoch != self.epoch {
            return;
        }
        let mut all = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        for decoded in decoded {
            for (all, read) in all.iter_mut().zip(decoded.ids_read()) {
                all.ids += read.ids;
                all.outside += read.outside;
            }
        }
    }
}

/// Assembles batches until the last epoch ends, an error occurs, or the loader is dropped.
fn assemble(
    order: ShuffleOrder,
    features: &Features,
    start: &Position,
    mut queue: DecodeQueue,
    mut outbox: Outbox,
    first: &FirstEpoch,
) {
    let mut epoch = start.epoch;
    let mut batch = start.batch;
    let mut skip = start.offset as usize;
    let (_, mut ends) = order.windows(epoch);
    let mut filling = BatchBuilder::new(features, order.batch_size as usize);
    let (mut decoded, mut is_first) = (Vec::new(), true);
    while let Some((window, groups)) = queue.next() {
        if window.epoch != epoch {
            (epoch, batch) = (window.epoch, 0);
            ends = order.windows(epoch).1;
        }
        // The order of the rows is computed while the row groups are being decoded.
        let rows = order.rows_of(&window);
        decoded = match queue.decoded(groups, decoded) {
            Ok(decoded) => decoded,
            Err(error) => return outbox.end(LoaderMessage::Failed(error)),
        };
        first.count(epoch, &decoded);
        let mut rows = &rows[std::mem::take(&mut skip)..];
        let is_last = window.index as usize + 1 == ends.len();
        loop {
            let room = order.batch_size as usize - filling.len();
            let (now, later) = rows.split_at(room.min(rows.len()));
            filling.take(&decoded, now);
            rows = later;
            let is_full = filling.len() == order.batch_size as usize;
            let is_rest = is_last && filling.len() > 0;
            if !is_full && !is_rest {
                break;
            }
            let samples = filling.finish();
            if !is_full && order.drop_last {
                break;
            }
            batch += 1;
            let position = order.position(epoch, batch, &ends);
            if outbox.push(Loaded { batch: samples, position }).is_err() {
                return;
            }
            // After the first batch, the training step that waited for it needs the cores. On two
            // cores, decoding further blocks at once delayed that step by milliseconds.
            if !is_first || outbox.is_full() {
                queue.prefetch();
            }
        }
        is_first = false;
        // Full groups of batches are sent first, because waiting for the next window may take a
        // while.
        if outbox.flush().is_err() {
            return;
        }
        queue.prefetch();
    }
    outbox.end(LoaderMessage::End);
}
