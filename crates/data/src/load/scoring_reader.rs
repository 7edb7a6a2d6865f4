//! Raw files to batches for a trained model, without preparing a dataset: what scoring reads.
//!
//! Batches follow the order of the files; each sample knows its line, so that a score can be put
//! back to its record even where malformed ones were skipped.

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

/// What is scored, and how it is read.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    /// Files, plain, `.gz` or `.zst`, or `-` for standard input.
    pub inputs: Vec<String>,
    /// Format and columns, as in training.
    pub config: DataConfig,
    /// The state fitted in training.
    pub fitted: Fitted,
    pub features: FeaturePlan,
    /// Most samples of a batch.
    pub batch_size: usize,
    /// Whether batches are filled, or given out as their rows come.
    pub pace: BlockPace,
    /// What a malformed record does.
    pub strictness: Strictness,
    pub threads: usize,
}

/// Samples of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoringBatch {
    /// Index of the file among the inputs.
    pub input: usize,
    /// Line of each sample in its file, from 1; for Parquet the row.
    pub lines: Vec<u64>,
    /// The samples. Labels are NaN where the file has none.
    pub batch: Batch,
    /// Malformed records met so far, with [`BlockPace::AsItComes`] exactly those before the end of
    /// this batch. Such a batch may have no sample where all of a block was malformed.
    pub malformed: u64,
}

/// Yields the batches of raw files; an error ends it.
pub struct ScoringReader {
    messages: Option<Receiver<ScoreMessage>>,
    thread: Option<JoinHandle<()>>,
    features: Features,
    batch_size: usize,
    pace: BlockPace,
    malformed: u64,
    /// The block being cut into batches.
    block: Option<CutRows>,
    filling: BatchBuilder,
    filling_lines: Vec<u64>,
    filling_input: usize,
    losses: Losses,
}

/// A block of rows of which some are used.
struct CutRows {
    input: usize,
    lines: Vec<u64>,
    decoded: [DecodedRows; 1],
    used: usize,
    malformed: u64,
}

enum ScoreMessage {
    /// The index of the input, rows, and how many records were malformed.
    Rows(usize, PreparedRows, u64),
    Done(Result<Losses, Error>),
}

/// Starts reading raw files for scoring. A file may lack the label: by its header, or in a
/// headerless layout (Criteo's included) by having one field less.
///
/// # Errors
/// [`Error::FittedMismatch`], [`Error::MissingColumn`], [`Error::TableTooSmall`],
/// [`Error::Config`], [`Error::Stdin`]; what is wrong with the files comes with the batches.
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
    source(&request, &wanted).check(1)?;
    let (sender, messages) = bounded(2);
    let (batch_size, pace) = (request.batch_size, request.pace);
    let thread = std::thread::spawn(move || {
        let losses = read(&request, &wanted, &sender);
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

fn source<'a>(request: &'a ScoreRequest, wanted: &'a WantedColumns) -> ScanInputs<'a> {
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

fn read(
    request: &ScoreRequest,
    wanted: &WantedColumns,
    sender: &Sender<ScoreMessage>,
) -> Result<Losses, Error> {
    let source = source(request, wanted);
    let is_list = source.lists()?;
    let applier = Applier::new(&request.fitted);
    let taker = || Transformed::new(&applier, &request.fitted, &is_list);
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
    source.scan(&mut meter, taker, take)
}

impl ScoringReader {
    /// What was left out; complete once the batches have ended.
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

    /// Takes rows of the current block; `true` when the batch must go out.
    fn take_block(&mut self) -> bool {
        let Some(block) = &mut self.block else { return false };
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
            // A panic there has ended the batches with an error already.
            let _ = thread.join();
        }
    }
}
