//! Batches of a dataset in a deterministic order, decoded ahead by background threads.
//!
//! One thread puts batches together and stays some ahead; others decode row groups, as many as the
//! machine has cores, at most one window ahead. A window of the same row groups as the one before
//! is not decoded again. Order is `shuffle`'s, batches are `gather`'s.

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

/// Samples ready ahead of the batch in use, in two batches at least: small batches are used up
/// before a thread gets its turn on a busy machine.
const SAMPLES_AHEAD: usize = 1 << 14;
/// Memory for them, in two batches at least: with a thousand features a step takes long enough for
/// the next batch to be assembled meanwhile, and a batch takes 16 KiB per sample.
const BYTES_AHEAD: usize = 64 << 20;
/// Samples handed over together, in one batch at least: to take from a queue that was full wakes a
/// thread, which costs some 20 µs, as much as a step of small batches may wait.
const SAMPLES_TOGETHER: usize = SAMPLES_AHEAD / 8;
/// Threads that decode, at most: they are busy only while a window is filled, the first above all,
/// for which training waits.
const DECODE_THREADS_MOST: usize = 8;
/// Rows that a decoder takes at least: each of several decompresses the pages they share.
const PIECE_ROWS_LEAST: usize = 2048;

/// A shuffle in bounded memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    pub seed: u64,
    /// Rows held and shuffled together, rounded up to whole row groups.
    pub buffer_rows: usize,
}

/// What is read and how.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Samples of a batch.
    pub batch_size: usize,
    /// `None` keeps the order of the dataset.
    pub shuffle: Option<Shuffle>,
    /// Leaves out the last, smaller batch of an epoch.
    pub drop_last: bool,
    /// The rows read; `0..dataset.rows()` for all.
    pub rows: Range<u64>,
    /// Where to start; [`Position::default`] for the beginning.
    pub start: Position,
    /// Epochs in all, those before `start` included; `None` never ends.
    pub epochs: Option<u64>,
}

/// A batch and the position after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub batch: Batch,
    /// Where to resume once this batch has been used.
    pub position: Position,
}

/// Yields batches; an error ends it. Dropping it stops its threads.
pub struct Loader {
    dir: PathBuf,
    /// Taken from `batches` together.
    ready: std::vec::IntoIter<Loaded>,
    /// Taken when the loader ends.
    batches: Option<Receiver<LoaderMessage>>,
    threads: Vec<JoinHandle<()>>,
    order: ShuffleOrder,
    features: Arc<Features>,
    read: Arc<Mutex<Vec<IdsRead>>>,
}

enum LoaderMessage {
    Batches(Vec<Loaded>),
    Failed(Error),
    End,
}

impl Loader {
    /// Starts loading.
    ///
    /// # Errors
    /// [`Error::MissingColumn`] and [`Error::TableTooSmall`] for the features, [`Error::Config`]
    /// for impossible options, [`Error::PositionMismatch`] for a start that belongs to other
    /// options.
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
            pieces_per_group: decoders.div_ceil(order.groups() as usize),
            pieces: pieces_ahead(decoders),
            dir: dataset.dir().to_owned(),
        };
        let mut threads = Vec::with_capacity(decoders + 1);
        // First, for it says what the others decode, and training waits for the first batch.
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
                    // Nobody waits any more when the loader was dropped.
                    let _ = answer.send(DecodedRows::read(&dataset, &piece, &features));
                }
            }));
        }
        let (dir, ready) = (dataset.dir().to_owned(), Vec::new().into_iter());
        Ok(Self { dir, ready, batches: Some(batches), threads, order, features, read })
    }

    /// Ids outside their tables, per column where they are counted, among the rows read so far in
    /// the epoch in which this loader began: later ones read the same rows.
    #[must_use]
    pub fn ids_outside(&self) -> Vec<IdsOutside> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        self.features.ids_outside(&read)
    }

    /// Whether an epoch is one window: its rows are decoded once, before the first batch, and kept.
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
            // A panic there has ended the batches with an error already.
            let _ = thread.join();
        }
    }
}

/// Batches that are handed over together.
fn batches_together(batch_size: usize) -> usize {
    (SAMPLES_TOGETHER / batch_size).max(1)
}

/// How many times that is ready ahead of the batch in use.
fn batches_ahead(features: usize, batch_size: usize) -> usize {
    let together = batches_together(batch_size) * batch_size;
    // An id and the end of its bag for each feature, at least.
    let bytes = together.saturating_mul((features * 16).max(1));
    (SAMPLES_AHEAD / together).min(BYTES_AHEAD / bytes).max(2)
}

/// Pieces to be decoded or on their way, in whole windows.
fn pieces_ahead(decoders: usize) -> usize {
    decoders + 1
}

fn decode_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
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

/// The windows of all epochs from a position on.
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

type DecodeTask = (GroupPiece, Sender<Result<DecodedRows, Error>>);

/// Row groups in their order, as they are decoded.
type PendingPieces = Vec<Receiver<Result<DecodedRows, Error>>>;

/// The row groups of a window.
enum WindowGroups {
    Pending(PendingPieces),
    /// Those of the window before, and where each of them is now: each epoch of a small dataset is
    /// one window.
    Reused(Vec<usize>),
}

/// Windows being decoded ahead of the one in use.
struct DecodeQueue {
    windows: WindowIter,
    jobs: Sender<DecodeTask>,
    submitted: VecDeque<(GroupWindow, WindowGroups)>,
    /// Pieces of the window submitted last.
    last: Vec<GroupPiece>,
    /// More than one where an epoch has fewer row groups than there are decoders.
    pieces_per_group: usize,
    /// Pieces to be on their way, in whole windows.
    pieces: usize,
    dir: PathBuf,
}

impl DecodeQueue {
    /// The next window, its row groups on their way.
    fn next(&mut self) -> Option<(GroupWindow, WindowGroups)> {
        self.submit(1);
        self.submitted.pop_front()
    }

    /// Has the windows decoded that will follow.
    fn prefetch(&mut self) {
        self.submit(self.pieces);
    }

    /// The row groups of a window, after those of the window before it.
    fn decoded(
        &self,
        groups: WindowGroups,
        before: Vec<DecodedRows>,
    ) -> Result<Vec<DecodedRows>, Error> {
        let lost = || Error::LoaderStopped { path: self.dir.clone() };
        match groups {
            WindowGroups::Pending(answers) => {
                // Two windows at most are in memory: the next one is on its way already.
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

    /// Submits windows until at least `pieces` pieces are on their way.
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
                // Decoders live as long as this sender; one that panicked shows as a missing
                // answer.
                let _ = self.jobs.send((piece.clone(), answer));
                result
            });
            let groups = WindowGroups::Pending(answers.collect());
            self.submitted.push_back((window, groups));
        }
    }
}

/// Where each of `pieces` is among `wanted`, if they are the same pieces.
fn find_reused(pieces: &[GroupPiece], wanted: &[GroupPiece]) -> Option<Vec<usize>> {
    if pieces.len() != wanted.len() {
        return None;
    }
    pieces.iter().map(|piece| wanted.iter().position(|other| other == piece)).collect()
}

/// Batches to be sent together: the first is sent alone to cut start-up latency; after that the
/// group size doubles.
struct Outbox {
    batches: Vec<Loaded>,
    size: usize,
    most: usize,
    sender: Sender<LoaderMessage>,
}

/// The loader was dropped.
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

/// Counts the ids that are read in one epoch.
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

/// Assembles batches until the end, an error, or until the receiver is gone.
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
        // While the row groups are decoded.
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
            // Whoever waited for the first batch needs the cores now: on two of them what follows,
            // decoded at once, kept the step from its turn for milliseconds.
            if !is_first || outbox.is_full() {
                queue.prefetch();
            }
        }
        is_first = false;
        // Decoding what follows may take a while.
        if outbox.flush().is_err() {
            return;
        }
        queue.prefetch();
    }
    outbox.end(LoaderMessage::End);
}
