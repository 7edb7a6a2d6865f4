//! What could not be read: counted by reason, the first few kept with file and line. How much of it
//! is too much is `limit`'s.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How many malformed records are kept in full.
const KEPT: usize = 10;
/// Parts what is expected from what was got, in every reason.
const GOT: &str = ", got ";

/// Why a record is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowRefusal {
    /// It cannot be read: what is wrong with it.
    Malformed(String),
    /// It has no label, and the configuration says that such rows are left out.
    Unlabeled,
    /// It is the header line once more, as where files were joined.
    RepeatedHeader,
}

impl From<String> for RowRefusal {
    fn from(reason: String) -> Self {
        Self::Malformed(reason)
    }
}

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

/// What a reader left out, and which ids have no row of their own. Empty when everything was read
/// and no ids were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Number of records skipped because they could not be read.
    pub malformed_lines: u64,
    /// The first of them, at most ten.
    pub first: Vec<Malformed>,
    /// How many there are of each reason, without what was got instead.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// What the ids of each categorical column are like; none of columns behind the last one that
    /// has any to tell of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<IdCount>,
    /// Rows without a label that were left out because the configuration says so.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub unlabeled: LeftOut,
    /// Lines that repeat the header.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub repeated_headers: LeftOut,
    /// Files without a row, such as the empty parts that Spark writes; the line of the first is 0.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub empty_files: LeftOut,
}

/// Records that are no data, however many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub count: u64,
    /// File and line of the first.
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

/// What the ids of one categorical column are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCount {
    /// Rows of the column's table; `None` where ids are not counted.
    pub rows: Option<u64>,
    /// Ids, missing ones left out; 0 where they are not counted.
    pub ids: u64,
    /// Those among them that are no row of the table.
    pub outside: u64,
    pub negative: u64,
    /// Ids from 2^63 on.
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
    /// Records that gave no row.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.malformed_lines + self.unlabeled.count + self.repeated_headers.count
    }

    /// Counts the record at `line` of `file`.
    pub(crate) fn count(&mut self, file: &str, line: u64, refusal: RowRefusal) {
        match refusal {
            RowRefusal::Malformed(reason) => self.count_malformed(file, line, reason),
            RowRefusal::Unlabeled => self.unlabeled.count(file, line),
            RowRefusal::RepeatedHeader => self.repeated_headers.count(file, line),
        }
    }

    fn count_malformed(&mut self, file: &str, line: u64, reason: String) {
        self.malformed_lines += 1;
        // A number of fields that many records have says what is wrong with them.
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

    /// The reason that most records were refused for, and how many; the first by name of equals.
    #[must_use]
    pub fn most_common_reason(&self) -> Option<(&str, u64)> {
        let most = self.reasons.iter().rev().max_by_key(|&(_, count)| *count);
        most.map(|(reason, &count)| (&**reason, count))
    }

    /// Adds what a later part of the input lost.
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
