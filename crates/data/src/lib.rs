//! Reads training data: raw files are *prepared* once into a dataset folder, from which a loader
//! makes batches.
//!
//! The modules follow the data from file to batch:
//!
//! - `input` finds, opens and decompresses files and objects on a network.
//! - `parse` turns bytes into rows, one file per format.
//! - `scan` reads all inputs of a request in order, on several threads, and limits malformed rows.
//! - `prepare` fits the transforms and writes the dataset: Parquet files and `dataset.json`, in
//!   bounded memory, with the same bytes for any number of threads.
//! - `dataset` describes what is stored: [`Dataset`], its manifest and the [`Fitted`] transforms,
//!   which are enough to read new files.
//! - `load` yields batches: [`Loader`] from a dataset, in a seeded order that can be resumed
//!   exactly, and [`read_for_scoring`] from raw files.
//! - [`profile`] detects the format and columns of files, [`stats`] computes statistics of files
//!   and datasets, and [`synthetic`] generates both.
//!
//! This crate knows only two things about a model: the names of its features and the number of rows
//! of its tables.

pub mod checksum;
mod dataset;
mod error;
mod input;
mod load;
mod loss;
mod ordered;
mod parse;
mod prepare;
pub mod profile;
mod scan;
pub mod stats;
pub mod synthetic;

pub use checksum::{Checksum, Fingerprint};
pub use dataset::Dataset;
pub use dataset::column_shape::ColumnShape;
pub use dataset::fitted::{Fitted, FittedCategorical, FittedDense, RareCategories};
pub use dataset::manifest::{CategoricalEntry, DatasetColumns, DatasetPart, Footer, Manifest};
pub use dataset::prepared_rows::{Categories, PreparedRows};
pub use error::Error;
pub use input::folder::expand_folders;
pub use input::origin::InputOrigin;
pub use input::remote::{RemoteProblem, is_remote};
pub use load::gather::FeaturePlan;
pub use load::loader::{
    BatchShare, Loaded, Loader, LoaderMemory, LoaderOptions, LoaderShape, Shuffle,
};
pub use load::row_exchange::{ExchangeError, ExchangeParts, RowSharing};
pub use load::scoring_reader::{ScoreRequest, ScoringBatch, ScoringReader, read_for_scoring};
pub use load::shuffle::{Position, ShuffleOrder};
pub use loss::{IdCount, LeftOut, Losses, Malformed};
pub use parse::block::BlockPace;
pub use parse::format::input_files;
pub use parse::ids::IdsOutside;
pub use parse::integer_columns::IntegerColumns;
pub use parse::parquet::table::{ColumnValues, TableColumn, encode_table};
pub use parse::{criteo_tsv, small_table};
pub use prepare::request::{Begin, DEFAULT_ROW_GROUP_ROWS, PrepareRequest};
pub use prepare::resume::{UnfinishedPreparation, discard_unfinished, find_unfinished};
pub use prepare::shape::DataShape;
pub use prepare::writer::{DatasetNotes, DatasetWriter, WriterOptions};
pub use prepare::{Prepared, default_threads, prepare, prepare_memory};
pub use scan::criteo_files::scan_criteo_files;
pub use scan::limit::Strictness;
pub use scan::progress::DataProgress;
