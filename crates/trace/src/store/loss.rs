//! What could not be read, counted by kind. Nothing is dropped silently.

use std::collections::BTreeMap;

use serde::Serialize;

/// How many losses of a kind are kept in full.
const KEPT: usize = 10;

/// A kind of loss or repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The text or the compressed stream ends early.
    Truncated,
    /// The compressed stream or the archive is damaged; what could be unpacked was read.
    Damaged,
    /// An event whose text is no JSON object; skipped.
    BrokenEvent,
    /// Control characters, unescaped quotes or bad escapes inside a text; repaired.
    BrokenText,
    /// Bytes that are no UTF-8; replaced.
    InvalidUtf8,
    /// An event without a time where one is needed; skipped.
    NoTime,
    /// A time or an id that is no number or does not fit; skipped or left out.
    BadNumber,
    /// A negative duration; taken as 0.
    NegativeDuration,
    /// A begin without an end, or an end without a begin; skipped.
    Unpaired,
    /// An event of a phase we do not keep.
    UnknownPhase,
    /// Events behind the end of the first JSON document; not read.
    BehindTheEnd,
    /// Text without events behind the end of the first JSON document; not read.
    TextBehindTheEnd,
    /// Another recording of a rank that was recorded several times; not read.
    OtherCapture,
    /// A piece of device work that reaches far past the next one of its stream, which it must
    /// precede, cut where that one starts; or a host row that ends long after everything else, cut
    /// where that ends.
    RefutedDuration,
    /// More than 255 categories; the rest are one.
    ManyCategories,
    /// A file beside the others has the name of a trace, and no event could be read from it.
    LostFile,
    /// Several files claim one rank, or none names one: numbered by order of their names.
    RankConflict,
    /// A field before or behind the rows that has another form than expected; kept as it is.
    BrokenHeader,
    /// A node of a graph whose id another has; skipped.
    DuplicateNode,
    /// A node whose parent does not exist; taken as a root.
    DanglingParent,
    /// Nodes that lie in each other; one is taken as a root.
    CyclicParent,
}

/// One kind's count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LossCount {
    pub count: u64,
    /// The first ones: where (byte of the uncompressed text), expected, got.
    pub first: Vec<String>,
}

/// What could not be read. Empty when everything was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Losses {
    kinds: BTreeMap<Loss, LossCount>,
    /// Bytes of events that could not be read.
    #[serde(skip)]
    event_bytes: u64,
}

impl Losses {
    /// Counts one loss; `describe` is called only for the first few.
    pub fn count(&mut self, loss: Loss, describe: impl FnOnce() -> String) {
        self.count_many(loss, 1, describe);
    }

    /// Counts several losses that one text describes.
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

    /// Bytes that were skipped between events.
    pub fn skipped_bytes(&self) -> u64 {
        self.event_bytes
    }

    /// Adds what a later part lost.
    pub fn append(&mut self, later: Self) {
        self.event_bytes += later.event_bytes;
        for (loss, counted) in later.kinds {
            let entry = self.kinds.entry(loss).or_default();
            entry.count += counted.count;
            let room = KEPT - entry.first.len();
            entry.first.extend(counted.first.into_iter().take(room));
        }
    }

    /// Forgets what one kind lost, when it has been put right.
    pub fn remove(&mut self, loss: Loss) {
        self.kinds.remove(&loss);
    }

    /// The kinds that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, &LossCount)> {
        self.kinds.iter().map(|(loss, count)| (*loss, count))
    }

    /// How often one kind occurred.
    pub fn count_of(&self, loss: Loss) -> u64 {
        self.kinds.get(&loss).map_or(0, |counted| counted.count)
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}
