//! The request for a preparation.

use std::path::Path;

use schema::DataConfig;

use crate::dataset::fitted::Fitted;
use crate::scan::limit::Strictness;

/// Default number of rows per row group, small enough for fine-grained shuffling.
pub const DEFAULT_ROW_GROUP_ROWS: usize = 16_384;

/// The inputs of a preparation, the configuration, and the place of the dataset.
#[derive(Debug)]
pub struct PrepareRequest<'a> {
    /// Paths of plain or compressed files, or `-` for standard input.
    pub inputs: &'a [String],
    pub config: &'a DataConfig,
    /// State fitted on other data, such as the training data for an evaluation file. If `None`, the
    /// state is fitted on these inputs, which may take further passes.
    pub fitted: Option<&'a Fitted>,
    /// Share of rows at the end that fitting leaves out, because they will be held out. It includes
    /// the share [`DataConfig::validation`].
    pub hold_out: f64,
    /// Folder of the dataset, which must not exist.
    pub out: &'a Path,
    /// Number of rows per row group, usually [`DEFAULT_ROW_GROUP_ROWS`].
    pub row_group_rows: usize,
    pub strictness: Strictness,
    /// Number of threads, on which the result does not depend.
    pub threads: usize,
    /// Report of the generator, recorded for synthetic rows.
    pub generator: Option<serde_json::Value>,
    /// Whether to resume an interrupted preparation. The result does not depend on it.
    pub begin: Begin,
}

/// Whether a preparation resumes an interrupted one in the same place or discards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Resume if the inputs and the configuration are the same as before.
    Resume,
    Restart,
}
