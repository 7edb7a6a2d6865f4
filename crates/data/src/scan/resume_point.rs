//! The position from which an interrupted scan can resume.

use serde::{Deserialize, Serialize};

use crate::loss::Losses;
use crate::parse::block::LineStart;

/// A position in the inputs, with the rows and losses before it. The point is saved with an
/// unfinished preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResumePoint {
    pub file: usize,
    pub place: LineStart,
    /// Rows of each input before this point.
    pub rows: Vec<u64>,
    /// Losses of each input before this point.
    pub losses: Vec<Losses>,
}

impl ResumePoint {
    /// Whether this can be a point of `inputs` inputs, at or before row `rows`.
    pub(crate) fn fits(&self, inputs: usize, rows: u64) -> bool {
        self.file < inputs
            && (self.rows.len(), self.losses.len()) == (inputs, inputs)
            && self.rows_before() <= rows
    }

    /// Returns the number of rows before this point.
    pub(crate) fn rows_before(&self) -> u64 {
        self.rows.iter().sum()
    }
}
