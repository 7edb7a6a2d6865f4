//! Files to batches: text and Parquet, on disks or on a network, are *prepared* once into a dataset
//! folder, which a loader reads.
//!
//! - [`prepare`](prepare::prepare) streams Criteo, CSV, TSV or Parquet input into a [`Dataset`]: a
//!   folder of Parquet files and `dataset.json`, in bounded memory, the same bytes for any number
//!   of threads.
//! - [`Fitted`] is what was learnt from the training data (means, vocabularies): enough to read new
//!   files.
//! - [`Loader`] yields batches of a dataset in a seeded order that can be resumed exactly.
//! - [`records`] reads a small table with a header, field by field.
//! - [`score`] streams batches from raw files for a trained model.
//!
//! Knows nothing of models beyond the names of features and the rows of their tables.

mod accept;
mod archive;
mod block;
pub mod checksum;
mod column_shape;
mod convert;
pub mod criteo_tsv;
mod csv;
mod dataset;
mod datetime;
mod decompress;
mod error;
mod field;
mod fit;
mod fitted;
mod folder;
mod format;
mod gather;
mod given;
mod header;
mod ids;
mod integer_columns;
mod layout;
mod limit;
mod loader;
mod loss;
mod manifest;
mod mark;
mod npy;
mod number_form;
mod ordered;
mod origin;
mod parquet;
mod parted;
mod partition;
pub mod prepare;
pub mod profile;
mod progress;
mod reader;
mod record;
pub mod records;
mod remote;
mod request;
mod resume;
mod row;
mod rows;
mod runs;
mod scan;
pub mod score;
mod shape;
mod shuffle;
pub mod stats;
pub mod synthetic;
mod text;
mod utf16;
mod vocabulary;
mod writer;

pub use block::BlockPace;
pub use checksum::{Checksum, Fingerprint};
pub use column_shape::ColumnShape;
pub use dataset::Dataset;
pub use error::Error;
pub use fitted::{Fitted, FittedCategorical, FittedDense, RareCategories};
pub use folder::files_of;
pub use format::input_files;
pub use gather::FeaturePlan;
pub use ids::IdsOutside;
pub use integer_columns::IntegerColumns;
pub use limit::Strictness;
pub use loader::{Loaded, Loader, LoaderMemory, LoaderOptions, LoaderShape, Shuffle};
pub use loss::{IdCount, LeftOut, Losses, Malformed};
pub use manifest::{CategoricalEntry, DatasetColumns, DatasetPart, Footer, Manifest};
pub use origin::InputOrigin;
pub use parquet::table::{ColumnValues, TableColumn, encode_table};
pub use prepare::{Prepared, default_threads, prepare, prepare_memory};
pub use progress::DataProgress;
pub use remote::{RemoteProblem, is_remote};
pub use request::{Begin, DEFAULT_ROW_GROUP_ROWS, PrepareRequest};
pub use resume::{Kept, discard, kept};
pub use rows::{Categories, Rows};
pub use score::{ScoreRequest, ScoringBatch, ScoringReader, read_for_scoring};
pub use shape::DataShape;
pub use shuffle::{Position, ShuffleOrder};
pub use writer::{DatasetNotes, DatasetWriter, WriterOptions};
