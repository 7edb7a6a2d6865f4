//! Statistics of datasets and raw files: rows, click rate, and for each column range, missing
//! values, distinct categories and skew. Rows are streamed in bounded memory, and the result does
//! not depend on the number of threads.
//!
//! The caller formats the statistics as a table.

pub(crate) mod category;
mod dense;
mod figure;

use std::ops::Range;

use schema::DataConfig;
use schema::random::CounterRng;
use schema::source::DenseColumn;
use serde::Serialize;

use crate::dataset::Dataset;
use crate::dataset::part;
use crate::error::Error;
use crate::loss::Losses;
use crate::ordered;
use crate::parse::block::BlockPace;
use crate::parse::layout::{LabelNeed, WantedColumns};
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::scan::ScanInputs;
use crate::scan::limit::Strictness;
use crate::scan::progress::{DataProgress, ProgressMeter};

pub use figure::{CategoricalStats, CountMethod, DenseStats};

use category::CategoryTally;
use dense::DenseTally;

/// Number of rows whose dense values are kept for quantiles. Up to this number, quantiles are
/// exact. With more rows, quantiles come from a uniform sample and are accurate to about 0.4
/// percentage points.
const SAMPLE_ROWS: u64 = 1 << 16;
const STREAM_SAMPLE: u64 = 0x57a7;

/// Statistics of a dataset or of raw files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    pub rows: u64,
    /// Mean of the labels; `None` if there are no labels.
    pub click_rate: Option<f64>,
    pub values: ValuesSeen,
    pub dense: Vec<DenseStats>,
    pub categorical: Vec<CategoricalStats>,
}

/// Whether statistics describe raw or prepared values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValuesSeen {
    /// Values as they are in the files, where missing fields are known.
    Raw,
    /// Prepared values: dense values are transformed, and missing ones are filled in and not
    /// counted as missing. Category 0 counts as missing, although files may also contain a category
    /// 0.
    Prepared,
}

/// Computes the statistics of a range of a prepared dataset. `progress` receives the number of rows
/// so far.
///
/// # Cost
/// Reads the rows once, on `threads` threads. Takes at most 4 MiB per categorical column, 0.5 MiB
/// per dense column, and the row groups in flight.
/// # Errors
/// Returns any [`Error`] of reading the dataset.
pub fn summarize_dataset(
    dataset: &Dataset,
    rows: Range<u64>,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Stats, Error> {
    let columns = &dataset.manifest().columns;
    let names = columns.categorical.iter().map(|entry| entry.name.clone()).collect();
    let mut tally = ColumnTally::new(columns.dense.clone(), names);
    let size = dataset.manifest().row_group_rows;
    let groups = rows.start / size..rows.end.min(dataset.rows()).div_ceil(size);
    let produce = |send: ordered::SendItem<'_, u64>| {
        for group in groups {
            if !send(group) {
                break;
            }
        }
        Ok(())
    };
    let work = |group: u64| {
        let start = group * size;
        let within = rows.start.saturating_sub(start)..rows.end.saturating_sub(start);
        BlockColumns::from_row_group(dataset, group, within)
    };
    ordered::run(threads, produce, work, |block| {
        tally.take(&block?);
        progress(tally.rows);
        Ok(())
    })?;
    Ok(tally.finish(ValuesSeen::Prepared))
}

/// Computes the statistics of raw files (or `-`), and the records that could not be read.
///
/// # Cost
/// Reads the files once, on `threads` threads, in the memory of [`summarize_dataset`].
/// # Errors
/// Returns any [`Error`] of reading the files.
pub fn summarize_inputs(
    inputs: &[String],
    config: &DataConfig,
    strictness: Strictness,
    threads: usize,
    progress: &mut dyn FnMut(DataProgress),
) -> Result<(Stats, Losses), Error> {
    let wanted = WantedColumns::new(config)?;
    let dense = wanted.dense.iter().map(DenseColumn::name).collect();
    let categorical: Vec<String> =
        wanted.categorical.iter().map(|column| column.column.clone()).collect();
    let source = ScanInputs {
        inputs,
        config,
        wanted: &wanted,
        label: LabelNeed::Required,
        strictness,
        pace: BlockPace::FullBlocks,
        threads: threads.max(1),
    };
    source.check(1)?;
    let mut meter = ProgressMeter::new(config.format, inputs, 1, progress)?;
    let mut tally = ColumnTally::new(dense, categorical);
    let empty = || BlockColumns::empty(tally_width(&wanted));
    let losses = source.scan(&mut meter, empty, |block| {
        tally.take(&block.sink);
        Ok(())
    })?;
    let mut stats = tally.finish(ValuesSeen::Raw);
    for (column, count) in stats.categorical.iter_mut().zip(&losses.ids) {
        column.ids_outside = count.rows.map(|_| count.outside);
    }
    Ok((stats, losses))
}

/// Numbers of dense and of categorical columns.
type Width = (usize, usize);

fn tally_width(wanted: &WantedColumns) -> Width {
    (wanted.dense.len(), wanted.categorical.len())
}

/// A block of rows in columns, which is the unit of work of a thread.
struct BlockColumns {
    labels: Vec<f32>,
    /// Values of each dense column, `[rows]`; NaN for missing values.
    dense: Vec<Vec<f64>>,
    categorical: Vec<BlockBags>,
}

/// The categories of one column in a block.
#[derive(Clone, Default)]
struct BlockBags {
    values: Vec<i64>,
    empty: u64,
    /// Number of categories in the longest row.
    longest: u64,
}

impl BlockColumns {
    fn empty((dense, categorical): Width) -> Self {
        Self {
            labels: Vec::new(),
            dense: vec![Vec::new(); dense],
            categorical: vec![BlockBags::default(); categorical],
        }
    }

    /// Decodes the rows `within` of one row group.
    fn from_row_group(dataset: &Dataset, group: u64, within: Range<u64>) -> Result<Self, Error> {
        let columns = &dataset.manifest().columns;
        let (dense, categorical) = (columns.dense.len(), columns.categorical.len());
        let (reader, index) = dataset.part_of(group)?;
        let all: Vec<usize> = (0..categorical).collect();
        let mut block = Self::empty((dense, categorical));
        let mut first = 0;
        let rows = reader.rows_of(index);
        for batch in reader.read(index, 0..rows, dense, &all, rows)? {
            let batch = batch?;
            let place = |row: u64| (row as usize).saturating_sub(first).min(batch.num_rows());
            let rows = place(within.start)..place(within.end);
            first += batch.num_rows();
            block.labels.extend_from_slice(&part::float_values(&batch, 0)[rows.clone()]);
            for (column, values) in block.dense.iter_mut().enumerate() {
                let floats = &part::float_values(&batch, 1 + column)[rows.clone()];
                values.extend(floats.iter().map(|&value| f64::from(value)));
            }
            for (column, bags) in block.categorical.iter_mut().enumerate() {
                let stored = part::id_bags(&batch, 1 + dense + column);
                for row in rows.clone() {
                    // Prepared rows store a missing category as 0.
                    bags.push(stored.row(row).iter().copied().filter(|&value| value != 0));
                }
            }
        }
        Ok(block)
    }
}

impl BlockBags {
    fn push(&mut self, categories: impl Iterator<Item = i64>) {
        let before = self.values.len();
        self.values.extend(categories);
        let length = self.values.len() - before;
        self.empty += u64::from(length == 0);
        self.longest = self.longest.max(length as u64);
    }
}

impl RowSink for BlockColumns {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.labels.push(row.label);
        for (values, &value) in self.dense.iter_mut().zip(&row.dense) {
            values.push(value);
        }
        for (column, bags) in self.categorical.iter_mut().enumerate() {
            bags.push(row.column(column).iter().copied().flatten());
        }
        Ok(())
    }
}

/// Running statistics of all columns.
struct ColumnTally {
    rows: u64,
    clicks: f64,
    rng: CounterRng,
    dense: Vec<DenseTally>,
    categorical: Vec<CategoryTally>,
}

impl ColumnTally {
    fn new(dense: Vec<String>, categorical: Vec<String>) -> Self {
        Self {
            rows: 0,
            clicks: 0.0,
            rng: CounterRng::new(0, STREAM_SAMPLE),
            dense: dense.into_iter().map(DenseTally::new).collect(),
            categorical: categorical.into_iter().map(CategoryTally::new).collect(),
        }
    }

    fn take(&mut self, block: &BlockColumns) {
        let rows = block.labels.len() as u64;
        self.clicks += block.labels.iter().map(|&label| f64::from(label)).sum::<f64>();
        // Reservoir sampling, in which the slot of a row depends only on its number.
        let slots = (self.rows..self.rows + rows).map(|row| {
            let slot = if row < SAMPLE_ROWS { row } else { self.rng.below(row, row + 1) };
            (slot < SAMPLE_ROWS).then_some(slot as usize)
        });
        let slots: Vec<Option<usize>> = slots.collect();
        for (tally, values) in self.dense.iter_mut().zip(&block.dense) {
            tally.take(values, &slots);
        }
        for (tally, bags) in self.categorical.iter_mut().zip(&block.categorical) {
            tally.take(&bags.values, bags.empty);
            tally.note_longest(bags.longest);
        }
        self.rows += rows;
    }

    fn finish(self, values: ValuesSeen) -> Stats {
        let rate = self.clicks / self.rows as f64;
        let rows = self.rows;
        Stats {
            rows,
            click_rate: rate.is_finite().then_some(rate),
            values,
            dense: self.dense.into_iter().map(|tally| tally.finish(rows)).collect(),
            categorical: self.categorical.into_iter().map(|tally| tally.finish(rows)).collect(),
        }
    }
}
