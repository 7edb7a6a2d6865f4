//! Reads raw files into batches for scoring with a trained model, without preparing a dataset.
//!
//! Batches follow the order of the files. Each sample carries its line number, so that scores can
//! be matched to records even if malformed ones were skipped.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use schema::{Batch, DataConfig};

use crate::dataset::fitted::{Applier, Fitted};
use crate::dataset::prepared_rows::PreparedRows;
use crate::error::Error;
use crate::load::gather::FeaturePlan;
use crate::load::gather::{BatchBuilder, DecodedRows, Features};
use crate::loss::Losses;
use crate::parse::block::BlockPace;
use crate::parse::layout::{LabelNeed, UnlabeledRows, WantedColumns};
use crate::prepare::Transformed;
use crate::scan::ScanInputs;
use crate::scan::convert::ConvertedBlock;
use crate::scan::limit::Strictness;
use crate::scan::progress::ProgressMeter;

/// Inputs to be scored, with the configuration and fitted state of the training run.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    /// Paths of plain or compressed files, or `-` for standard input.
    pub inputs: Vec<String>,
    /// Format and columns of the files, as in training.
    pub config: DataConfig,
    pub fitted: Fitted,
    pub features: FeaturePlan,
    /// Largest number of samples per batch.
    pub batch_size: usize,
    /// Whether to wait for full batches or to return rows as they arrive.
    pub pace: BlockPace,
    pub strictness: Strictness,
    pub threads: usize,
}

/// A batch of samples of one file, with the line of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoringBatch {
    /// Index of the file among the inputs.
    pub input: usize,
    /// Line of each sample in its file, from 1; the row number for Parquet.
    pub lines: Vec<u64>,
    /// Samples of the batch, whose labels are NaN if the file has no labels.
    pub batch: Batch,
    /// Number of malformed records so far. With [`BlockPace::AsItComes`] these are exactly the
    /// records before the end of this batch, which may then be empty.
    pub malformed: u64,
}

/// An iterator over the batches of raw files, which ends after an error.
pub struct ScoringReader {
    messages: Option<Receiver<ScoreMessage>>,
    thread: Option<JoinHandle<()>>,
    features: Features,
    batch_size: usize,
    pace: BlockPace,
    malformed: u64,
    /// The block whose rows are being distributed to batches.
    block: Option<CutRows>,
    filling: BatchBuilder,
    filling_lines: Vec<u64>,
    filling_input: usize,
    losses: Losses,
}

/// A block of converted rows, with the number of rows already used.
struct CutRows {
    input: usize,
    lines: Vec<u64>,
    decoded: [DecodedRows; 1],
    used: usize,
    malformed: u64,
}

/// Messages of the reading thread to the iterator.
enum ScoreMessage {
    /// Index of an input, a block of its rows, and the number of malformed records in the block.
    Rows(usize, PreparedRows, u64),
    Done(Result<Losses, Error>),
}

/// Starts reading raw files for scoring. A file may lack the label. The header of such a file does
/// not name the label or, in files without a header such as Criteo's, its rows have one field less.
///
/// # Errors
/// Returns [`Error::FittedMismatch`], [`Error::MissingColumn`], [`Error::TableTooSmall`],
/// [`Error::Config`] or [`Error::Stdin`]. Errors in the files themselves are returned with the
/// batches.
pub fn read_for_scoring(request: ScoreRequest) -> Result<ScoringReader, Error> {
    if request.batch_size == 0 {
        let problem = "expected at least 1, got 0".to_owned();
        return Err(Error::Config { key: "batch_size", problem });
    }
    let mut wanted = WantedColumns::new(&request.config)?;
    wanted.rules = request.fitted.rules()?;
    wanted.unlabeled_rows = UnlabeledRows::Kept;
    request.fitted.check(&request.config, &wanted)?;
    let features = Features::new(&request.features, &request.fitted, Path::new("[data]"))?;
    scan_inputs(&request, &wanted).check(1)?;
    let (sender, messages) = bounded(2);
    let (batch_size, pace) = (request.batch_size, request.pace);
    let thread = std::thread::spawn(move || {
        let losses = read_inputs(&request, &wanted, &sender);
        // A failed send means that the reader was dropped.
        let _ = sender.send(ScoreMessage::Done(losses));
    });
    Ok(ScoringReader {
        messages: Some(messages),
        thread: Some(thread),
        filling: BatchBuilder::new(&features, batch_size),
        features,
        batch_size,
        pace,
        malformed: 0,
        block: None,
        filling_lines: Vec::new(),
        filling_input: 0,
        losses: Losses::default(),
    })
}

fn scan_inputs<'a>(request: &'a ScoreRequest, wanted: &'a WantedColumns) -> ScanInputs<'a> {
    ScanInputs {
        inputs: &request.inputs,
        config: &request.config,
        wanted,
        label: LabelNeed::Optional,
        strictness: request.strictness,
        pace: request.pace,
        threads: request.threads.max(1),
    }
}

fn read_inputs(
    request: &ScoreRequest,
    wanted: &WantedColumns,
    sender: &Sender<ScoreMessage>,
) -> Result<Losses, Error> {
    let source = scan_inputs(request, wanted);
    let is_list = source.lists()?;
    let applier = Applier::new(&request.fitted);
    let new_sink = || Transformed::new(&applier, &request.fitted, &is_list);
    let take = |mut parsed: ConvertedBlock<Transformed<'_>>| {
        let columns = parsed.sink.rows.categorical.iter_mut();
        columns.zip(&parsed.losses.ids).for_each(|(rows, count)| rows.unsigned = count.large > 0);
        let malformed = parsed.losses.records();
        let message = ScoreMessage::Rows(parsed.file, parsed.sink.rows, malformed);
        sender.send(message).map_err(|_| Error::LoaderStopped { path: PathBuf::from("[data]") })
    };
    let mut silent = |_| {};
    let format = request.config.format;
    let mut meter = ProgressMeter::new(format, &request.inputs, 1, &mut silent)?;
    source.scan(&mut meter, new_sink, take)
}

impl ScoringReader {
    /// Returns the records that were left out. The counts are complete once the iterator has ended.
    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    fn emit(&mut self) -> ScoringBatch {
        ScoringBatch {
            input: self.filling_input,
            lines: std::mem::take(&mut self.filling_lines),
            batch: self.filling.finish(),
            malformed: self.malformed,
        }
    }

    /// Moves rows of the current block into the batch and returns whether the batch is complete.
    fn take_block(&mut self) -> bool {
        let Some(block) = &mut self.block else { return false };
        // A batch holds samples of one file only, so the rest of the previous file is returned
        // first.
        if block.input != self.filling_input && self.filling.len() > 0 {
            return true;
        }
        self.filling_input = block.input;
        let count = (self.batch_size - self.filling.len()).min(block.lines.len() - block.used);
        let range = block.used..block.used + count;
        let rows: Vec<(u32, u32)> = range.clone().map(|row| (0, row as u32)).collect();
        self.filling.take(&block.decoded, &rows);
        self.filling_lines.extend_from_slice(&block.lines[range]);
        block.used += count;
        let is_done = block.used == block.lines.len();
        if is_done {
            self.malformed += block.malformed;
            self.block = None;
        }
        self.filling.len() == self.batch_size || (is_done && self.pace == BlockPace::AsItComes)
    }
}

impl Iterator for ScoringReader {
    type Item = Result<ScoringBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while self.block.is_some() {
                if self.take_block() {
                    return Some(Ok(self.emit()));
                }
            }
            match self.messages.as_ref().map(Receiver::recv) {
                Some(Ok(ScoreMessage::Rows(input, rows, malformed))) => {
                    match DecodedRows::from_rows(&rows, &self.features) {
                        Ok(decoded) => {
                            let (lines, decoded, used) = (rows.lines, [decoded], 0);
                            self.block = Some(CutRows { input, lines, decoded, used, malformed });
                        }
                        Err(error) => {
                            self.messages = None;
                            self.filling.finish();
                            return Some(Err(error));
                        }
                    }
                }
                Some(Ok(ScoreMessage::Done(Ok(losses)))) => {
                    self.losses = losses;
                    self.messages = None;
                }
                Some(Ok(ScoreMessage::Done(Err(error)))) => {
                    self.messages = None;
                    self.filling.finish();
                    return Some(Err(error));
                }
                Some(Err(_)) => {
                    self.messages = None;
                    return Some(Err(Error::LoaderStopped { path: PathBuf::from("[data]") }));
                }
                // All blocks were received, so the last batch may be smaller.
                None if self.filling.len() > 0 => return Some(Ok(self.emit())),
                None => return None,
            }
        }
    }
}

impl Drop for ScoringReader {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already ended the iterator with an error.
            let _ = thread.join();
        }
    }
}
