//! Counts by kind what could not be read. Nothing is dropped silently.

use std::collections::BTreeMap;

use schema::CellType;
use serde::Serialize;

/// Number of losses per kind that are kept with their description.
const KEPT: usize = 10;

/// A kind of loss or repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The text or the compressed stream ends early.
    Truncated,
    /// The compressed stream or the archive is damaged; the part that could be unpacked was read.
    Damaged,
    /// An event whose text is not a JSON object; skipped.
    BrokenEvent,
    /// Control characters, unescaped quotes or invalid escapes in a string; repaired.
    BrokenText,
    /// Invalid UTF-8 in a string; replaced.
    InvalidUtf8,
    /// An event without a required time; skipped.
    NoTime,
    /// A time or an id that is not a number or does not fit; skipped or left out.
    BadNumber,
    /// A negative duration; replaced by 0.
    NegativeDuration,
    /// A begin without an end, or an end without a begin; skipped.
    Unpaired,
    /// An event of a phase that is not stored.
    UnknownPhase,
    /// Events after the end of the first JSON document; not read.
    BehindTheEnd,
    /// Text without events after the end of the first JSON document; not read.
    TextBehindTheEnd,
    /// Another recording of a rank that was recorded several times; not read.
    OtherCapture,
    /// A duration that contradicts other rows. Device work that reaches far into the next work of
    /// its stream is cut at that work's start. A host row that ends long after all others is cut at
    /// their end.
    RefutedDuration,
    /// More than 255 categories; the remaining ones share one.
    ManyCategories,
    /// A file with the name of a trace, from which no event could be read.
    LostFile,
    /// Several files claim the same rank, or a file names none; numbered in the order of names.
    RankConflict,
    /// A header field of an unexpected type; kept unchanged.
    BrokenHeader,
    /// A graph node with the id of another node; skipped.
    DuplicateNode,
    /// A node whose parent does not exist; treated as a root.
    DanglingParent,
    /// Nodes that contain each other; one is treated as a root.
    CyclicParent,
}

/// The number of losses of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossCount {
    pub count: u64,
    /// The first losses, as position (byte of the uncompressed text), expected and actual value.
    pub first: Vec<String>,
}

/// The losses of a trace by kind. Empty if everything was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Losses {
    kinds: BTreeMap<Loss, LossCount>,
    /// Bytes of events that could not be read.
    #[serde(skip)]
    event_bytes: u64,
}

impl Losses {
    /// Counts one loss. `describe` is called only for the first few.
    pub fn count(&mut self, loss: Loss, describe: impl FnOnce() -> String) {
        self.count_many(loss, 1, describe);
    }

    /// Counts several losses with a common description.
    pub fn count_many(&mut self, loss: Loss, count: u64, describe: impl FnOnce() -> String) {
        let entry = self.kinds.entry(loss).or_default();
        entry.count += count;
        if entry.first.len() < KEPT {
            entry.first.push(describe());
        }
    }

    /// Counts bytes that were skipped between two events.
    pub fn skip_bytes(&mut self, bytes: u64) {
        self.event_bytes += bytes;
    }

    /// Returns the bytes that were skipped between events.
    pub fn skipped_bytes(&self) -> u64 {
        self.event_bytes
    }

    /// Adds the losses of a later part.
    pub fn append(&mut self, later: Self) {
        self.event_bytes += later.event_bytes;
        for (loss, counted) in later.kinds {
            let entry = self.kinds.entry(loss).or_default();
            entry.count += counted.count;
            let room = KEPT - entry.first.len();
            entry.first.extend(counted.first.into_iter().take(room));
        }
    }

    /// Removes the losses of one kind, after they were repaired.
    pub fn remove(&mut self, loss: Loss) {
        self.kinds.remove(&loss);
    }

    /// Iterates over the kinds that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, &LossCount)> {
        self.kinds.iter().map(|(loss, count)| (*loss, count))
    }

    /// Returns the number of losses of one kind.
    pub fn count_of(&self, loss: Loss) -> u64 {
        self.kinds.get(&loss).map_or(0, |counted| counted.count)
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}
