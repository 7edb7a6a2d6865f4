//! What could not be read: counted, the first few kept with file and line. Decides nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many malformed records are kept in full.
const KEPT: usize = 10;

/// One record that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Malformed {
    /// The file as it was named.
    pub file: String,
    /// Line in the (decompressed) file, from 1; for Parquet the row, from 1.
    pub line: u64,
    /// What is wrong: where, expected, got.
    pub reason: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.reason)
    }
}

/// What a reader left out. Empty when everything was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Number of records skipped because they could not be read.
    pub malformed_lines: u64,
    /// The first of them, at most ten.
    pub first: Vec<Malformed>,
}

impl Losses {
    /// Counts one record; `describe` is called only for the first few.
    pub(crate) fn count(&mut self, describe: impl FnOnce() -> Malformed) {
        self.malformed_lines += 1;
        if self.first.len() < KEPT {
            self.first.push(describe());
        }
    }

    /// Adds what a later part of the input lost.
    pub(crate) fn append(&mut self, later: Losses) {
        self.malformed_lines += later.malformed_lines;
        let room = KEPT - self.first.len();
        self.first.extend(later.first.into_iter().take(room));
    }
}
