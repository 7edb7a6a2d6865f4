//! Loads batches of a dataset in a deterministic order. Background threads decode ahead of the
//! training loop.
//!
//! One thread assembles batches and keeps a few ready. Up to eight threads decode row groups, at
//! most one window ahead. If a window has the same row groups as the one before, it is not decoded
//! again. `shuffle` defines the order, `decode_queue` decodes ahead and `gather` assembles the
//! batches. Ranks that share the reading exchange rows in `row_exchange`.

mod memory;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use schema::Batch;

use crate::dataset::Dataset;
use crate::error::Error;
use crate::load::decode_queue::{DecodeQueue, WindowIter, spawn_decoders};
use crate::load::gather::message::MessageLayout;
use crate::load::gather::{BatchBuilder, DecodedRows, FeaturePlan, Features, IdsRead};
use crate::load::row_exchange::{FilledMessage, FilledWindow, RowExchanger, RowSharing};
use crate::load::shuffle::{Position, RankShare, ShuffleOrder};
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
    /// Largest number of batches to return, or `None` for no limit. Row groups that only later
    /// batches need are not read.
    pub batches: Option<u64>,
}

/// A batch, and the position from which loading can resume after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// All samples of the batch, or those of this rank if ranks share the reading.
    pub batch: Batch,
    /// The place of this rank's samples, if ranks share the reading.
    pub share: Option<BatchShare>,
    pub position: Position,
}

/// The place of the samples of one rank in a batch that several ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShare {
    /// Index of the rank's first sample among the samples of all ranks.
    pub first_sample: usize,
    /// Number of samples of all ranks.
    pub global_size: usize,
}

/// An iterator over batches. The iterator ends after an error, and dropping it stops its threads.
pub struct Loader {
    dir: PathBuf,
    /// Batches that arrived together and are not yet returned.
    ready: std::vec::IntoIter<Loaded>,
    /// Channel of the batches, which is dropped once the loader has ended.
    batches: Option<Receiver<LoaderMessage>>,
    threads: Vec<JoinHandle<()>>,
    /// Receives a message for each batch that was returned, if ranks share the reading.
    taken: Option<Sender<()>>,
    abandon: Option<Box<dyn FnOnce() + Send>>,
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
        Self::start_shared(dataset, features, options, None)
    }

    /// Checks what [`Self::start`] checks, without starting a loader.
    ///
    /// # Errors
    /// Returns the errors of [`Self::start`].
    pub fn check(
        dataset: &Dataset,
        features: &FeaturePlan,
        options: &LoaderOptions,
    ) -> Result<(), Error> {
        Features::new(features, dataset.fitted(), dataset.dir())?;
        build_order(dataset, options)?.resume(&options.start).map(drop)
    }

    /// Starts a loader that returns this rank's samples of each batch and shares the reading with
    /// the other ranks of `sharing`. Without `sharing`, it returns whole batches.
    ///
    /// # Errors
    /// Returns the errors of [`Self::start`].
    pub fn start_shared(
        dataset: &Dataset,
        features: &FeaturePlan,
        options: LoaderOptions,
        sharing: Option<RowSharing>,
    ) -> Result<Self, Error> {
        let features = Arc::new(Features::new(features, dataset.fitted(), dataset.dir())?);
        let order = build_order(dataset, &options)?;
        let start = order.resume(&options.start)?;
        let share = sharing.as_ref().map_or(RankShare::ALONE, |sharing| RankShare {
            rank: u64::from(sharing.rank),
            ranks: u64::from(sharing.ranks),
        });
        let together = batches_together(options.batch_size);
        let (sender, batches) = bounded(batches_ahead(features.count(), options.batch_size));
        let outbox = Outbox { batches: Vec::new(), size: 1, most: together, sender };
        let windows = WindowIter::from(order, &start, options.epochs, options.batches);
        let (queue, tasks) = DecodeQueue::new(dataset, windows, share);
        let mut threads = Vec::new();
        let read = Arc::new(Mutex::new(vec![IdsRead::default(); features.len()]));
        let (mut taken, mut abandon) = (None, None);
        let source = match sharing {
            None => WindowSource::Own(Box::new(queue)),
            Some(RowSharing { exchange, abandon: leave, .. }) => {
                let (give, takes) = unbounded();
                (taken, abandon) = (Some(give), Some(leave));
                let layout = MessageLayout::new(&features, dataset);
                let start = start.clone();
                let exchanger =
                    RowExchanger { order, start, share, queue, layout, exchange, taken: takes };
                let (filled, windows) = unbounded();
                threads.push(std::thread::spawn(move || exchanger.run(&filled)));
                WindowSource::Shared(windows, dataset.dir().to_owned())
            }
        };
        // The assembling thread starts before the decoders: it submits the decoding tasks, and
        // training waits for its first batch.
        let assembly = Assembly {
            order,
            share,
            batches: options.batches.unwrap_or(u64::MAX),
            first: FirstEpoch { epoch: start.epoch, read: Arc::clone(&read) },
            start,
        };
        let shared = Arc::clone(&features);
        threads.push(std::thread::spawn(move || assembly.run(&shared, source, outbox)));
        threads.extend(spawn_decoders(dataset, &features, &tasks));
        let (dir, ready, batches) =
            (dataset.dir().to_owned(), Vec::new().into_iter(), Some(batches));
        Ok(Self { dir, ready, batches, threads, taken, abandon, order, features, read })
    }

    /// Ends a loader whose batches are no longer needed. If ranks share the reading, all of them
    /// must have taken the same number of batches.
    pub fn finish(mut self) {
        self.abandon = None;
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
            // The receiver is gone once all windows have been exchanged.
            let _ = self.taken.as_ref().map(|taken| taken.send(()));
            return Some(Ok(loaded));
        }
        let message = self.batches.as_ref()?.recv();
        let end = match message {
            Ok(LoaderMessage::Batches(batches)) => {
                self.ready = batches.into_iter();
                return self.next();
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
        if let Some(abandon) = self.abandon.take() {
            abandon();
        }
        (self.batches, self.taken) = (None, None);
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

/// The source of the windows from which batches are assembled.
enum WindowSource {
    /// Windows that this loader decodes.
    Own(Box<DecodeQueue>),
    /// Windows of the dataset in a folder that this rank exchanges with others.
    Shared(Receiver<FilledMessage>, PathBuf),
}

impl WindowSource {
    /// Returns the next window. The row groups of the one before are in `before`.
    fn next(
        &mut self,
        order: &ShuffleOrder,
        start: &Position,
        before: Vec<DecodedRows>,
    ) -> Option<Result<FilledWindow, Error>> {
        match self {
            Self::Own(queue) => {
                let (window, groups) = queue.next()?;
                // The order of the rows is computed while the row groups are being decoded.
                let rows = order.rows_from(start, &window);
                let decoded = queue.decoded(groups, before);
                Some(decoded.map(|decoded| FilledWindow { window, decoded, rows }))
            }
            Self::Shared(windows, dir) => {
                drop(before);
                let lost = |_| Some(Err(Error::LoaderStopped { path: dir.clone() }));
                windows.recv().unwrap_or_else(lost)
            }
        }
    }

    /// Gives the next windows to the decoder threads, unless another thread does so.
    fn prefetch(&mut self) {
        if let Self::Own(queue) = self {
            queue.prefetch();
        }
    }
}

/// The batches to assemble.
struct Assembly {
    order: ShuffleOrder,
    share: RankShare,
    start: Position,
    /// Largest number of batches.
    batches: u64,
    first: FirstEpoch,
}

impl Assembly {
    /// Assembles batches until the last one, an error occurs, or the loader is dropped.
    fn run(self, features: &Features, mut source: WindowSource, mut outbox: Outbox) {
        let Self { order, share, start, .. } = &self;
        let (mut epoch, mut batch, mut left) = (start.epoch, start.batch, self.batches);
        let (_, mut ends) = order.windows(epoch);
        let size_most = order.batch_size.div_ceil(share.ranks) as usize;
        let mut filling = BatchBuilder::new(features, size_most);
        let (mut decoded, mut is_first) = (Vec::new(), true);
        while let Some(filled) = source.next(order, start, decoded) {
            let (window, rows);
            FilledWindow { window, decoded, rows } = match filled {
                Ok(filled) => filled,
                Err(error) => return outbox.end(LoaderMessage::Failed(error)),
            };
            if window.epoch != epoch {
                (epoch, batch) = (window.epoch, 0);
                ends = order.windows(epoch).1;
            }
            self.first.count(epoch, &decoded);
            let mut rows = &rows[..];
            while left > 0 && batch < order.batches() {
                let samples = order.batch_samples(batch);
                let part = share.part_of(samples);
                let missing = (part.end - part.start) as usize - filling.len();
                let (now, later) = rows.split_at(missing.min(rows.len()));
                filling.take(&decoded, now);
                rows = later;
                if now.len() < missing {
                    break;
                }
                (batch, left) = (batch + 1, left - 1);
                let place =
                    BatchShare { first_sample: part.start as usize, global_size: samples as usize };
                let share = (share.ranks > 1).then_some(place);
                let position = order.position(epoch, batch, &ends);
                if outbox.push(Loaded { batch: filling.finish(), share, position }).is_err() {
                    return;
                }
                // After the first batch, the training step that waited for it needs the cores. On
                // two cores, decoding further blocks at once delayed that step by milliseconds.
                if !is_first || outbox.is_full() {
                    source.prefetch();
                }
            }
            is_first = false;
            // Full groups of batches are sent first, because waiting for the next window may take a
            // while.
            if outbox.flush().is_err() {
                return;
            }
            source.prefetch();
        }
        outbox.end(LoaderMessage::End);
    }
}
