//! What is to be prepared.

use std::path::Path;

use schema::DataConfig;

use crate::dataset::fitted::Fitted;
use crate::scan::limit::Strictness;

/// A size of row groups that serves shuffling well.
pub const DEFAULT_ROW_GROUP_ROWS: usize = 16_384;

/// What is prepared, and how.
#[derive(Debug)]
pub struct PrepareRequest<'a> {
    /// Files, plain, `.gz` or `.zst`, or `-` for standard input.
    pub inputs: &'a [String],
    pub config: &'a DataConfig,
    /// State fitted on other data, such as the training data of an evaluation file. If `None`, it
    /// is fitted on these inputs, which then are read more than once where the columns need it.
    pub fitted: Option<&'a Fitted>,
    /// Share of the rows' end that fitting leaves out because it will be held out.
    pub hold_out: f64,
    /// The dataset's folder; must not exist.
    pub out: &'a Path,
    /// Rows of a row group; [`DEFAULT_ROW_GROUP_ROWS`] unless there is a reason.
    pub row_group_rows: usize,
    /// What a malformed record does.
    pub strictness: Strictness,
    /// Threads that convert and encode; the result does not depend on it.
    pub threads: usize,
    /// The generator's report, if the rows are synthetic; recorded as it is.
    pub generator: Option<serde_json::Value>,
    /// What becomes of an interrupted preparation into the same folder. The result does not depend
    /// on it.
    pub begin: Begin,
}

/// How a preparation begins where an earlier one was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It goes on, if inputs and configuration are the same.
    Resume,
    Restart,
}
