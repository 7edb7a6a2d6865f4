//! Where an interrupted reading can resume.

use serde::{Deserialize, Serialize};

use crate::loss::Losses;
use crate::parse::block::LineStart;

/// A place in the inputs, with what was read before it. Reading resumes there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResumePoint {
    /// Index of the input.
    pub file: usize,
    pub place: LineStart,
    /// Rows of each input so far.
    pub rows: Vec<u64>,
    /// What was left out of each so far.
    pub losses: Vec<Losses>,
}

impl ResumePoint {
    /// Whether it can be one of so many inputs, at or before row `rows`.
    pub(crate) fn fits(&self, inputs: usize, rows: u64) -> bool {
        self.file < inputs
            && (self.rows.len(), self.losses.len()) == (inputs, inputs)
            && self.rows_before() <= rows
    }

    /// Rows before it.
    pub(crate) fn rows_before(&self) -> u64 {
        self.rows.iter().sum()
    }
}
