//! The shape of a dataset, from which its memory is estimated: rows, columns and ids per row. The
//! shape is exact for prepared datasets and generated rows, and estimated from the first blocks of
//! raw files.

use std::sync::atomic::Ordering;

use schema::DataConfig;
use schema::source::IdMode;

use crate::dataset::Dataset;
use crate::dataset::column_shape::ColumnShape;
use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;
use crate::parse::block::BlockPace;
use crate::parse::format::input_files;
use crate::parse::layout::{LabelNeed, WantedColumns};
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::prepare::request::DEFAULT_ROW_GROUP_ROWS;
use crate::scan::ScanInputs;
use crate::scan::convert::convert;
use crate::scan::limit::Strictness;
use crate::scan::progress::Pass;
use crate::scan::record_block::RecordBlock;
use crate::synthetic::SyntheticConfig;

/// Number of blocks of raw files that are read as a sample.
const BLOCKS: usize = 4;
/// Assumed number of rows of a stream.
const UNKNOWN_ROWS: u64 = 1 << 22;
/// Assumed number of ids per list in a stream.
const UNKNOWN_IDS: f64 = 8.0;
/// Assumed number of bytes of text per field in a stream.
const UNKNOWN_FIELD_BYTES: f64 = 6.0;

/// The numbers that decide how much memory preparing and loading a dataset takes.
#[derive(Clone, Debug, PartialEq)]
pub struct DataShape {
    pub rows: u64,
    pub row_group_rows: u64,
    pub dense: usize,
    pub categorical: Vec<ColumnShape>,
    /// Total number of categories in all vocabularies.
    pub vocabulary: u64,
    /// Mean length of a row of text; 0 for other formats.
    pub text_row_bytes: f64,
}

impl DataShape {
    /// Reads the shape of a prepared dataset.
    ///
    /// # Errors
    /// Returns any [`Error`] of opening the parts.
    pub fn read(dataset: &Dataset) -> Result<Self, Error> {
        let manifest = dataset.manifest();
        let (columns, rows) = (&manifest.columns, dataset.rows());
        let ids = dataset.ids()?;
        let shape = |(entry, ids): (&crate::CategoricalEntry, u64)| ColumnShape {
            name: entry.name.clone(),
            ids_per_row: ids as f64 / rows.max(1) as f64,
            is_list: entry.is_list,
        };
        let fitted = dataset.fitted();
        let vocabulary = (0..fitted.categorical.len()).filter_map(|at| fitted.id_count(at)).sum();
        Ok(Self {
            rows,
            row_group_rows: manifest.row_group_rows,
            dense: columns.dense.len(),
            categorical: columns.categorical.iter().zip(ids).map(shape).collect(),
            vocabulary,
            text_row_bytes: 0.0,
        })
    }

    /// Returns the shape of rows that a configuration generates.
    #[must_use]
    pub fn from_synthetic(config: &SyntheticConfig) -> Self {
        let column = |feature: &crate::synthetic::SyntheticFeature| ColumnShape {
            name: feature.name.clone(),
            ids_per_row: feature.hotness.mean(),
            is_list: feature.hotness.max > 1,
        };
        let categorical: Vec<_> = config.features.iter().map(column).collect();
        let fields = config.dense as f64 + categorical.iter().map(|c| c.ids_per_row).sum::<f64>();
        Self {
            rows: config.rows,
            row_group_rows: DEFAULT_ROW_GROUP_ROWS as u64,
            dense: config.dense,
            categorical,
            vocabulary: 0,
            text_row_bytes: 2.0 + UNKNOWN_FIELD_BYTES * fields,
        }
    }

    /// Estimates the shape of raw files from their first blocks. The number of rows is scaled by
    /// the sizes of the files. Vocabularies are unknown, and bounded by `most_categories`.
    ///
    /// # Errors
    /// Returns any [`Error`] that preparation would meet in the first blocks.
    pub fn probe(
        inputs: &[String],
        config: &DataConfig,
        most_categories: u64,
    ) -> Result<Self, Error> {
        let wanted = WantedColumns::new(config)?;
        let source = ScanInputs {
            inputs,
            config,
            wanted: &wanted,
            label: LabelNeed::Required,
            strictness: Strictness::ANY,
            pace: BlockPace::FullBlocks,
            threads: 1,
        };
        source.check(1)?;
        let is_list = source.lists()?;
        // A pipe cannot be read a second time, so its shape is assumed instead of sampled.
        let is_file = |input: &String| std::fs::metadata(input).is_ok_and(|about| about.is_file());
        let files = input_files(config.format, inputs)?;
        let seen = if !files.iter().all(is_file) {
            FirstBlocks::unknown(config, &is_list)
        } else {
            FirstBlocks::count(&source, &files)?
        };
        let column = |((column, &ids), &is_list): ((&schema::source::CategoricalColumn, _), _)| {
            let ids_per_row = if is_list { ids } else { 1.0 };
            ColumnShape { name: column.column.clone(), ids_per_row, is_list }
        };
        let columns = wanted.categorical.iter().zip(&seen.ids_per_row).zip(&is_list);
        let categorical: Vec<_> = columns.map(column).collect();
        let ids: f64 = categorical.iter().map(|column| column.ids_per_row).sum();
        let vocabulary = match config.ids {
            IdMode::Modulo => 0,
            IdMode::Exact { .. } => most_categories.min((seen.rows as f64 * ids) as u64),
        };
        Ok(Self {
            rows: seen.rows,
            row_group_rows: DEFAULT_ROW_GROUP_ROWS as u64,
            dense: wanted.dense.len(),
            categorical,
            vocabulary,
            text_row_bytes: seen.text_row_bytes,
        })
    }

    /// Returns the mean number of ids per row over all categorical columns.
    #[must_use]
    pub fn ids_per_row(&self) -> f64 {
        self.categorical.iter().map(|column| column.ids_per_row).sum()
    }

    /// Returns the mean number of ids per row of column `name`; 1 if there is no such column.
    #[must_use]
    pub fn ids_per_row_of_column(&self, name: &str) -> f64 {
        self.column(name).map_or(1.0, |column| column.ids_per_row)
    }

    pub(crate) fn column(&self, name: &str) -> Option<&ColumnShape> {
        self.categorical.iter().find(|column| column.name == name)
    }

    /// Estimates the bytes of a row in [`crate::PreparedRows`].
    pub(crate) fn prepared_row_bytes(&self) -> f64 {
        let lists = self.categorical.iter().filter(|column| column.is_list).count();
        let numbers = size_of::<f32>() * (1 + self.dense + lists) + size_of::<u64>();
        numbers as f64 + size_of::<i64>() as f64 * self.ids_per_row()
    }
}

/// Statistics of the first blocks of the inputs.
struct FirstBlocks {
    rows: u64,
    ids_per_row: Vec<f64>,
    text_row_bytes: f64,
}

impl FirstBlocks {
    fn unknown(config: &DataConfig, is_list: &[bool]) -> Self {
        let ids = |&is_list: &bool| if is_list { UNKNOWN_IDS } else { 1.0 };
        let ids_per_row: Vec<f64> = is_list.iter().map(ids).collect();
        let fields = config.dense_columns().len() as f64 + ids_per_row.iter().sum::<f64>();
        Self { rows: UNKNOWN_ROWS, ids_per_row, text_row_bytes: 2.0 + UNKNOWN_FIELD_BYTES * fields }
    }

    fn count(source: &ScanInputs<'_>, files: &[String]) -> Result<Self, Error> {
        let columns = source.wanted.categorical.len();
        let observer = ReadObserver::default();
        let (mut blocks, mut text_bytes) = (0, 0);
        let mut sample = RowCounter { rows: 0, ids: vec![0; columns] };
        let mut stopped = false;
        source.produce(None, &Pass::counting(&observer), &mut |block: RecordBlock| {
            text_bytes += block.records.text_bytes();
            let parsed =
                convert(&block, source.wanted, RowCounter { rows: 0, ids: vec![0; columns] });
            sample.add(&parsed.sink);
            blocks += 1;
            stopped = blocks == BLOCKS;
            !stopped
        })?;
        let total = decompress::total_bytes(files)?.unwrap_or(0);
        // The decompressor is at most a few buffers ahead of the blocks, so `done` is nearly exact.
        let done = observer.bytes_done.load(Ordering::Relaxed).clamp(1, total.max(1));
        let scale = if stopped { total as f64 / done as f64 } else { 1.0 };
        let rows = sample.rows.max(1) as f64;
        Ok(Self {
            rows: (rows * scale).ceil() as u64,
            ids_per_row: sample.ids.iter().map(|&ids| ids as f64 / rows).collect(),
            text_row_bytes: text_bytes as f64 / rows,
        })
    }
}

/// A sink that counts rows and the ids of each column.
struct RowCounter {
    rows: u64,
    ids: Vec<u64>,
}

impl RowCounter {
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.ids.iter_mut().zip(&other.ids).for_each(|(sum, ids)| *sum += ids);
    }
}

impl RowSink for RowCounter {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.rows += 1;
        for (column, ids) in self.ids.iter_mut().enumerate() {
            *ids += row.column(column).iter().flatten().count() as u64;
        }
        Ok(())
    }
}
