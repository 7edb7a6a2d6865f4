//! Counts records that were left out, by reason, and keeps the first few with file and line. The
//! module `scan::limit` decides when there are too many.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of malformed records that are kept as examples.
const KEPT: usize = 10;
/// Separates the expectation from the actual value in every reason.
const GOT: &str = ", got ";

/// Reasons why a record does not become a row. Only malformed records count against the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowRefusal {
    /// The record cannot be parsed; the text describes the problem.
    Malformed(String),
    /// The label is missing, and the configuration leaves such rows out.
    Unlabeled,
    /// The line repeats the header, as in concatenated files.
    RepeatedHeader,
}

impl From<String> for RowRefusal {
    fn from(reason: String) -> Self {
        Self::Malformed(reason)
    }
}

/// The place of a malformed record, with a description of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Malformed {
    /// Path or URL as the user gave it.
    pub file: String,
    /// Line in the decompressed file, from 1; the row number for Parquet.
    pub line: u64,
    /// Column, expectation and actual value.
    pub reason: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.reason)
    }
}

/// Everything that reading left out, and counts of ids outside their tables. The value equals the
/// default if all records were read and no ids were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    pub malformed_lines: u64,
    /// The first malformed records, at most ten, as examples.
    pub first: Vec<Malformed>,
    /// Number of records per reason, without the actual values.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Counts of ids per categorical column. Trailing columns without counts are omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<IdCount>,
    /// Rows that were left out because they have no label.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub unlabeled: LeftOut,
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub repeated_headers: LeftOut,
    /// Files without rows, such as the empty parts that Spark writes. The line of the first one is
    /// recorded as 0.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub empty_files: LeftOut,
}

/// Number of left-out records of one kind, with the place of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub count: u64,
    pub first: Option<(String, u64)>,
}

impl LeftOut {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn count(&mut self, file: &str, line: u64) {
        self.count += 1;
        self.first.get_or_insert_with(|| (file.to_owned(), line));
    }

    fn append(&mut self, later: Self) {
        self.count += later.count;
        self.first = self.first.take().or(later.first);
    }
}

/// Counts of the ids of one categorical column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCount {
    /// Rows of the column's table; `None` if ids are not counted.
    pub rows: Option<u64>,
    /// Number of ids without missing ones; 0 if ids are not counted.
    pub ids: u64,
    /// Ids that are not rows of the table.
    pub outside: u64,
    pub negative: u64,
    /// Unsigned ids from 2^63 on.
    pub large: u64,
}

impl IdCount {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rows = self.rows.or(other.rows);
        self.ids += other.ids;
        self.outside += other.outside;
        self.negative += other.negative;
        self.large += other.large;
    }
}

impl Losses {
    /// Returns the number of records that did not become rows.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.malformed_lines + self.unlabeled.count + self.repeated_headers.count
    }

    pub(crate) fn count(&mut self, file: &str, line: u64, refusal: RowRefusal) {
        match refusal {
            RowRefusal::Malformed(reason) => self.count_malformed(file, line, reason),
            RowRefusal::Unlabeled => self.unlabeled.count(file, line),
            RowRefusal::RepeatedHeader => self.repeated_headers.count(file, line),
        }
    }

    fn count_malformed(&mut self, file: &str, line: u64, reason: String) {
        self.malformed_lines += 1;
        // A wrong number of fields that many records share is informative, so it stays in the key.
        let kind = match reason.split_once(GOT) {
            Some((expected, _)) if !expected.ends_with(" fields") => expected,
            _ => &reason,
        };
        match self.reasons.get_mut(kind) {
            Some(count) => *count += 1,
            None => drop(self.reasons.insert(kind.to_owned(), 1)),
        }
        if self.first.len() < KEPT {
            self.first.push(Malformed { file: file.to_owned(), line, reason });
        }
    }

    /// Returns the most frequent reason and its count. Among equally frequent reasons, it is the
    /// first by name.
    #[must_use]
    pub fn most_common_reason(&self) -> Option<(&str, u64)> {
        let most = self.reasons.iter().rev().max_by_key(|&(_, count)| *count);
        most.map(|(reason, &count)| (&**reason, count))
    }

    /// Adds the losses of a later part of the input.
    pub(crate) fn append(&mut self, later: Losses) {
        self.malformed_lines += later.malformed_lines;
        let room = KEPT - self.first.len();
        self.first.extend(later.first.into_iter().take(room));
        if self.ids.len() < later.ids.len() {
            self.ids.resize(later.ids.len(), IdCount::default());
        }
        self.ids.iter_mut().zip(&later.ids).for_each(|(all, later)| all.add(later));
        self.unlabeled.append(later.unlabeled);
        self.repeated_headers.append(later.repeated_headers);
        self.empty_files.append(later.empty_files);
        for (reason, count) in later.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }
}
