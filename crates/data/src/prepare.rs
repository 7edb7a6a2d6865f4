//! Prepares raw inputs as a dataset in a stream: fits transforms where needed, then converts and
//! writes the rows.
//!
//! # What is stored
//! `label` and the dense columns are stored as f32 after their transform, and categorical columns
//! as i64. With exact ids these are the final ids. In all other modes, the stored ids are raw
//! categories (the integer, or the XXH3-64 hash of the trimmed text as a bit pattern, or 0 if
//! missing), which the loader takes modulo the table's rows. Columns of lists keep their lists; a
//! missing list is empty, and missing elements are left out.

pub(crate) mod fit;
pub(crate) mod request;
pub(crate) mod resume;
mod runs;
pub(crate) mod shape;
pub(crate) mod time_split;
pub(crate) mod vocabulary;
pub(crate) mod writer;

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;

use schema::source::{HoldOut, IdMode};

use crate::dataset::fitted::{Applier, Fitted};
use crate::dataset::prepared_rows::PreparedRows;
use crate::dataset::{Dataset, held_out_rows};
use crate::error::Error;
use crate::input::origin::InputOrigin;
use crate::loss::Losses;
use crate::ordered;
use crate::parse::block::BlockPace;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::{LabelNeed, WantedColumns};
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::parse::text;
use crate::prepare::fit::{CategoricalCheck, FitPlan, Fitter};
use crate::prepare::request::PrepareRequest;
use crate::prepare::resume::StagingFolder;
use crate::prepare::shape::DataShape;
use crate::prepare::time_split::{PartFilter, TimeCollector, TimePart};
use crate::prepare::writer::{DatasetNotes, DatasetWriter, WriterOptions};
use crate::scan::ScanInputs;
use crate::scan::progress::{DataProgress, ProgressMeter};

/// The result of a preparation: the dataset, the records that were left out, and the identities of
/// the inputs.
#[derive(Debug)]
pub struct Prepared {
    pub dataset: Dataset,
    pub losses: Losses,
    /// Rows that were taken over from an interrupted preparation.
    pub resumed_rows: u64,
    /// Identities of the input files, except streams.
    pub origins: Vec<InputOrigin>,
}

/// Returns the number of threads of the machine, but at most 8, because the single reading thread
/// cannot feed more.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(8)
}

/// Estimates the peak memory of preparing a dataset of this shape: blocks of text and their rows in
/// flight, row groups being encoded, and the counts for exact ids.
#[must_use]
pub fn prepare_memory(shape: &DataShape, ids: IdMode, threads: usize) -> u64 {
    let row = shape.prepared_row_bytes();
    let rows = shape.rows as f64;
    // Parquet files and arrays are read in batches of 8192 rows.
    let (block_rows, text) = match shape.text_row_bytes {
        text if text > 0.0 => (text::BLOCK_BYTES as f64 / text, text),
        _ => (8192.0, row),
    };
    let blocks = (ordered::in_flight(threads) as f64 * block_rows).min(rows) * row.max(text);
    let groups = writer::groups_in_flight(threads) as f64 * shape.row_group_rows as f64;
    let counts = match ids {
        IdMode::Modulo => 0,
        IdMode::Exact { memory_mib, .. } => vocabulary::memory(shape.vocabulary, memory_mib << 20),
    };
    (blocks + groups.min(rows) * row) as u64 + counts
}

/// Reads the inputs of `request` and writes them as a prepared dataset. Reports progress to
/// `progress`.
///
/// # Cost
/// Reads the inputs once. Standardized columns or exact ids take one more pass, and before it
/// another pass to count rows if `hold_out` is not 0. Splitting by time takes one pass to find the
/// cuts and one for each part. Memory is bounded by the row groups in flight, below 1 GiB for any
/// input. Counting for exact ids spills to temporary files beside `out` if `data.ids.memory_mib` is
/// not enough.
/// # Errors
/// Returns any [`Error`]. Nothing is left at `out` then, but finished parts are kept beside it. The
/// same request resumes from them, and does not fit again or encode rows twice. Tab-separated text
/// is read only from the last finished part on, and other inputs from the start.
pub fn prepare(
    request: &PrepareRequest<'_>,
    progress: &mut dyn FnMut(DataProgress),
) -> Result<Prepared, Error> {
    let mut wanted = WantedColumns::new(request.config)?;
    if let Some(fitted) = request.fitted {
        wanted.rules = fitted.rules()?;
    }
    if request.hold_out > 0.0 {
        wanted = wanted.split_by_time(request.config);
    }
    let source = ScanInputs {
        inputs: request.inputs,
        config: request.config,
        wanted: &wanted,
        label: LabelNeed::Required,
        strictness: request.strictness,
        pace: BlockPace::FullBlocks,
        threads: request.threads.max(1),
    };
    // The output folder is checked first, because fitting may take long.
    if request.out.exists() {
        return Err(Error::OutExists { path: request.out.to_owned() });
    }
    source.check(1)?;
    let is_list = source.lists()?;
    if let Some(fitted) = request.fitted {
        fitted.check(request.config, &wanted)?;
    }
    let mut staging = StagingFolder::new(request)?;
    let given_state = request.fitted.cloned().or_else(|| staging.fitted());
    let unfitted = || Fitted::unfitted(request.config, &wanted);
    let plan = match &given_state {
        Some(_) => None,
        None => FitPlan::new(&unfitted(), &wanted, &is_list),
    };
    let mut fitted = given_state.unwrap_or_else(unfitted);
    let shares = held_out_shares(request);
    let parts = 1 + u64::from(shares.validation > 0.0) + u64::from(shares.test > 0.0);
    // A split by time takes a pass to find the cuts, and one pass for each part.
    let passes = match (&plan, &wanted.time) {
        (None, Some(_)) => 1 + parts,
        (Some(_), Some(_)) => 2 + parts,
        (None, None) => 1,
        (Some(_), None) if request.hold_out == 0.0 => 2,
        (Some(_), None) => 3,
    };
    source.check(passes)?;
    let mut meter = ProgressMeter::new(request.config.format, request.inputs, passes, progress)?
        .with_origins(Arc::clone(staging.origins()));
    let names = wanted.categorical.iter().map(|column| &column.column);
    let categorical = CategoricalCheck::new(names, &is_list);
    let parts = match wanted.time {
        None => Vec::new(),
        Some(_) => TimePart::between(&find_cuts(shares, &source, &mut meter, &categorical)?),
    };
    let columns = RowSplit { categorical, parts };
    if let Some(plan) = &plan {
        fit_transforms(request, &source, &mut meter, plan, &columns, &mut fitted)?;
        staging.keep_fitted(&fitted)?;
    }
    let written = write_dataset(request, staging, &source, &mut meter, fitted, &columns);
    if let Err(Error::TooManyMalformed { .. }) = written {
        // Finished parts are useless, because the same rows would be refused again.
        resume::discard_unfinished(request.out);
    }
    written
}

/// The properties that every row is checked against, and the parts of a split by time, if any.
struct RowSplit {
    categorical: CategoricalCheck,
    /// The training rows, followed by the held-out ones.
    parts: Vec<TimePart>,
}

/// Returns the shares of the rows that are held out.
fn held_out_shares(request: &PrepareRequest<'_>) -> HoldOut {
    let validation = request.config.validation.min(request.hold_out);
    let test = request.hold_out - validation;
    // The sum of two shares minus one of them is not exactly the other one.
    HoldOut { validation, test: if test < 1e-9 { 0.0 } else { test } }
}

/// Finds the times at which the rows are cut. The search takes 8 bytes of memory per row.
fn find_cuts(
    shares: HoldOut,
    source: &ScanInputs<'_>,
    meter: &mut ProgressMeter<'_>,
    categorical: &CategoricalCheck,
) -> Result<Vec<f64>, Error> {
    let mut times = Vec::new();
    let new_sink = || TimeCollector::new(categorical);
    source.scan(meter, new_sink, |mut block| {
        times.append(&mut block.sink.times);
        Ok(())
    })?;
    time_split::find_cuts(times, shares)
}

fn fit_transforms(
    request: &PrepareRequest<'_>,
    source: &ScanInputs<'_>,
    meter: &mut ProgressMeter<'_>,
    plan: &FitPlan,
    columns: &RowSplit,
    fitted: &mut Fitted,
) -> Result<(), Error> {
    let hold_out = request.hold_out;
    let mut rows = u64::MAX;
    // The last rows are held out, so the rows are counted before any row is fitted.
    if hold_out != 0.0 && columns.parts.is_empty() {
        let mut all = 0;
        source.scan(
            meter,
            || RowCount(plan),
            |block| {
                all += block.rows;
                Ok(())
            },
        )?;
        rows = all - held_out_rows(all, hold_out);
    }
    // `components` drops a trailing slash, so that the folder lies beside the output.
    let mut folder = request.out.components().collect::<PathBuf>().into_os_string();
    folder.push(".counting");
    let mut fitting = Fitter::new(plan, fitted.ids, rows, folder.into());
    let pass = meter.pass();
    let training = columns.parts.first().copied();
    let new_sink = || PartFilter::new(plan.sample(), training, &columns.categorical);
    source.scan(meter, new_sink, |block| fitting.take(&block.sink.inner, &pass))?;
    fitting.finish(plan, fitted)
}

fn write_dataset(
    request: &PrepareRequest<'_>,
    staging: StagingFolder,
    source: &ScanInputs<'_>,
    meter: &mut ProgressMeter<'_>,
    fitted: Fitted,
    columns: &RowSplit,
) -> Result<Prepared, Error> {
    let is_list = &columns.categorical.is_list;
    let applier = Applier::new(&fitted);
    let options = WriterOptions { row_group_rows: request.row_group_rows, threads: source.threads };
    let resumed_rows = staging.parts().iter().map(|part| part.rows).sum();
    let from = staging.resume_point().cloned();
    let origins = Arc::clone(staging.origins());
    let mut writer = DatasetWriter::resume(request.out, staging, &fitted, is_list, options)?;
    let is_split = !columns.parts.is_empty();
    let parts: Vec<Option<TimePart>> = match is_split {
        false => vec![None],
        true => columns.parts.iter().copied().map(Some).collect(),
    };
    let (mut losses, mut part_rows) = (None, Vec::new());
    for part in parts {
        let new_sink = || {
            let transformed = Transformed::new(&applier, &fitted, is_list);
            PartFilter::new(transformed, part, &columns.categorical)
        };
        let mut written = 0;
        let pass_losses = source.scan_from(from.as_ref(), meter, new_sink, |block, mark| {
            let rows = &block.sink.inner.rows;
            written += rows.len() as u64;
            // With several passes over each input, a position does not identify the rows written so
            // far.
            if !is_split {
                mark.into_iter().for_each(|mark| writer.note_resume_point(mark));
            }
            writer.push(rows)
        })?;
        part_rows.push(written);
        losses.get_or_insert(pass_losses);
    }
    let held_out = is_split.then(|| part_rows[1..].iter().sum());
    // With a single held-out part, the caller knows whether it is for validation.
    let validation = (part_rows.len() > 2).then(|| part_rows[1]);
    let losses = losses.unwrap_or_default();
    drop(applier);
    let record = DatasetNotes {
        inputs: request.inputs.to_vec(),
        fitted,
        losses: losses.clone(),
        held_out,
        validation,
        generator: request.generator.clone(),
    };
    let dataset = writer.finish(record)?;
    Ok(Prepared { dataset, losses, resumed_rows, origins: origins.to_origins() })
}

/// A sink that only counts the rows that would be accepted.
struct RowCount<'a>(&'a FitPlan);

impl RowSink for RowCount<'_> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.0.categorical().check(row)
    }

    fn accept_columns(&mut self, given: &ParsedColumns<'_>) -> bool {
        given.has_lists(&self.0.categorical().is_list)
    }

    fn accept_integers(&mut self, _: &mut IntegerColumns) {}
}

/// A sink that transforms rows into the form in which they are stored.
pub(crate) struct Transformed<'a> {
    applier: &'a Applier<'a>,
    pub rows: PreparedRows,
    categorical: CategoricalCheck,
}

impl<'a> Transformed<'a> {
    pub(crate) fn new(applier: &'a Applier<'a>, fitted: &Fitted, is_list: &[bool]) -> Self {
        let names = fitted.categorical.iter().map(|column| &column.column);
        let rows = PreparedRows::empty(fitted.dense.len(), is_list);
        Self { applier, rows, categorical: CategoricalCheck::new(names, is_list) }
    }
}

impl RowSink for Transformed<'_> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.categorical.check(row)?;
        self.rows.labels.push(row.label);
        self.rows.lines.push(row.line);
        for (column, (values, &value)) in self.rows.dense.iter_mut().zip(&row.dense).enumerate() {
            values.push(self.applier.dense(column, value));
        }
        for (column, into) in self.rows.categorical.iter_mut().enumerate() {
            let categories = row.column(column).iter();
            into.values.extend(categories.map(|&c| self.applier.category(column, c)));
            if let Some(ends) = &mut into.ends {
                ends.push(into.values.len() as u32);
            }
        }
        Ok(())
    }

    fn accept_columns(&mut self, given: &ParsedColumns<'_>) -> bool {
        if !given.has_lists(&self.categorical.is_list) {
            return false;
        }
        self.rows.labels.extend_from_slice(&given.labels);
        self.rows.lines.extend(given.first_line..given.first_line + given.len() as u64);
        for (column, (into, values)) in self.rows.dense.iter_mut().zip(&given.dense).enumerate() {
            into.extend(values.iter().map(|&value| self.applier.dense(column, value)));
        }
        let columns = self.rows.categorical.iter_mut().zip(&given.categorical);
        for (column, (into, given)) in columns.enumerate() {
            let id = |category| self.applier.category(column, category);
            let before = into.values.len() as u32;
            if given.missing.is_empty() {
                into.values.extend(given.values.iter().map(|&category| id(Some(category))));
            } else {
                into.values.extend(given.single().map(id));
            }
            if let (Some(into), Some(ends)) = (&mut into.ends, &given.ends) {
                into.extend(ends.iter().map(|end| before + end));
            }
        }
        true
    }

    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        self.rows.labels.append(&mut columns.labels);
        self.rows.lines.append(&mut columns.lines);
        for (column, values) in self.rows.dense.iter_mut().enumerate() {
            let given = columns.dense_column(column);
            values.extend(given.map(|value| self.applier.dense_integer(column, value)));
        }
        for (column, into) in self.rows.categorical.iter_mut().enumerate() {
            let given = columns.category_column(column);
            into.values.extend(given.map(|category| self.applier.category(column, category)));
        }
    }
}
