//! Counts the input that could not be read or had to be repaired, by kind, so that no input is
//! dropped silently.

use std::collections::BTreeMap;

use schema::CellType;
use serde::Serialize;

/// Number of losses of each kind that are kept with their description.
const KEPT: usize = 10;

/// A kind of input that could not be read, or that had to be repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The text or the compressed stream ends early.
    Truncated,
    /// The compressed stream or the archive is damaged. Only the part that could be unpacked was
    /// read.
    Damaged,
    /// The text of an event is not a JSON object, so the event was skipped.
    BrokenEvent,
    /// A string had control characters, unescaped quotes or invalid escapes, which were repaired.
    BrokenText,
    /// A string had invalid UTF-8, which was replaced.
    InvalidUtf8,
    /// An event lacks a required time, so it was skipped.
    NoTime,
    /// A time or an id is not a number or does not fit its type. The event with the number was
    /// skipped, or the id was left out.
    BadNumber,
    /// A duration is negative and was replaced by 0.
    NegativeDuration,
    /// A begin event without an end event, or an end event without a begin event, was skipped.
    Unpaired,
    /// An event has a phase that a trace does not store.
    UnknownPhase,
    /// Events that follow the end of the first JSON document were not read.
    BehindTheEnd,
    /// Text without events that follows the end of the first JSON document was not read.
    TextBehindTheEnd,
    /// A rank was recorded several times, and this recording of it was not read.
    OtherCapture,
    /// A duration contradicts other rows. Device work that reaches far into the next work of its
    /// stream was cut at that work's start. A host row that ends long after all others was cut at
    /// the end of those.
    RefutedDuration,
    /// The trace has more than 255 categories, so the remaining ones share the category "other".
    ManyCategories,
    /// A file has the name of a trace, but no event could be read from it.
    LostFile,
    /// Several files claim the same rank, or a file names no rank. Conflicting files were numbered
    /// in the order of their names.
    RankConflict,
    /// A header field has an unexpected type and was kept unchanged.
    BrokenHeader,
    /// A node of an execution trace has the id of another node, so it was skipped.
    DuplicateNode,
    /// The parent of a node does not exist, so the node is treated as a root.
    DanglingParent,
    /// Nodes are their own ancestors, so one of them is treated as a root.
    CyclicParent,
}

/// The number of losses of one kind, with descriptions of the first ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossCount {
    pub count: u64,
    /// Descriptions of the first losses. Each description states the byte of the uncompressed text,
    /// the expected value and the actual value.
    pub first: Vec<String>,
}

/// The losses of a trace by kind, which is empty if everything was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Losses {
    kinds: BTreeMap<Loss, LossCount>,
    /// Number of bytes that belong to events which could not be read.
    #[serde(skip)]
    event_bytes: u64,
}

impl Losses {
    /// Counts one loss. `describe` is called only while fewer than ten descriptions of its kind are
    /// kept.
    pub fn count(&mut self, loss: Loss, describe: impl FnOnce() -> String) {
        self.count_many(loss, 1, describe);
    }

    /// Counts several losses that share one description.
    pub fn count_many(&mut self, loss: Loss, count: u64, describe: impl FnOnce() -> String) {
        let entry = self.kinds.entry(loss).or_default();
        entry.count += count;
        if entry.first.len() < KEPT {
            entry.first.push(describe());
        }
    }

    /// Adds `bytes` to the number of bytes that were skipped between events.
    pub fn skip_bytes(&mut self, bytes: u64) {
        self.event_bytes += bytes;
    }

    /// Returns the number of bytes that were skipped between events.
    pub fn skipped_bytes(&self) -> u64 {
        self.event_bytes
    }

    /// Adds the losses of a later part of the same text.
    pub fn append(&mut self, later: Self) {
        self.event_bytes += later.event_bytes;
        for (loss, counted) in later.kinds {
            let entry = self.kinds.entry(loss).or_default();
            entry.count += counted.count;
            // Parts are appended in file order, so the kept descriptions are the first ones of the
            // file.
            let room = KEPT - entry.first.len();
            entry.first.extend(counted.first.into_iter().take(room));
        }
    }

    /// Removes the losses of one kind after their cause was repaired.
    pub fn remove(&mut self, loss: Loss) {
        self.kinds.remove(&loss);
    }

    /// Iterates over the kinds of losses that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, &LossCount)> {
        self.kinds.iter().map(|(loss, count)| (*loss, count))
    }

    /// Returns the number of losses of one kind.
    pub fn count_of(&self, loss: Loss) -> u64 {
        self.kinds.get(&loss).map_or(0, |counted| counted.count)
    }

    /// Whether everything was read, so that there are no losses.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}
