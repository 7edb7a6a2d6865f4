//! A trace as columns: slices, flows, counters, instants and the header around them.
//!
//! The one in-memory form of a trace, whether a file was read, a run recorded or a step simulated.
//! Times are absolute integer nanoseconds. Knows no file format and draws no conclusion.

mod argument;
mod category;
mod cut;
mod header;
mod loss;
mod mark;
pub(crate) mod room;
mod slice;
mod sparse;
mod string;
mod track;

pub use argument::{Collective, LaunchShape, PythonFrame, StackLine, SyncWait};
pub use category::{Category, EventKind};
pub use cut::{Covered, CutRecording, Ending};
pub use header::{DeviceProperties, Distributed, ProcessGroup, TraceHeader};
pub use loss::{Loss, LossCount, Losses};
pub use mark::{Allocation, Counter, Flow, FlowPhase, Instant};
pub use slice::{NewSlice, Slices};
pub use sparse::Sparse;
pub use string::{StringId, Strings};
pub use track::{Track, TrackId, TrackKey};

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The traces of one job, one per rank, ordered by rank.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// At least one, each with a rank of its own.
    pub traces: Vec<Trace>,
}

/// One rank's trace: the events of one file.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The rank: from the content, else the file's name, else its place among the files.
    pub rank: u32,
    /// Where it came from; empty for a trace that was never a file.
    pub origin: TraceOrigin,
    /// Everything outside the list of events.
    pub header: TraceHeader,
    pub strings: Strings,
    /// Per text of [`Slices::call_stack`]: its lines of Python, innermost first.
    pub stacks: BTreeMap<StringId, Vec<StackLine>>,
    /// The categories that occur, in order of first appearance.
    pub categories: Vec<Category>,
    /// Threads and streams, in order of first appearance.
    pub tracks: Vec<Track>,
    /// Events with a duration, in the order of the file.
    pub slices: Slices,
    pub flows: Vec<Flow>,
    pub counters: Vec<Counter>,
    pub instants: Vec<Instant>,
    /// Allocations and frees of the memory profiler.
    pub allocations: Vec<Allocation>,
    /// How many events of each Chrome phase the file held (`X`, `M`, `s`, `f`, `i`, …).
    pub phases: BTreeMap<String, u64>,
    /// What could not be read.
    pub losses: Losses,
    /// How the recording ended early; `None` where it did not.
    pub cut: Option<CutRecording>,
}

/// Where a trace came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOrigin {
    /// The file as it was named; `-` for standard input.
    pub path: PathBuf,
    /// The member of an archive.
    pub member: Option<String>,
    /// Size of the uncompressed text.
    pub text_bytes: u64,
    /// How its events are written.
    pub encoding: Encoding,
}

/// How the events of a file are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As JSON, each a text of its own.
    #[default]
    Json,
    /// In a form that only its format reads, from the whole file.
    Whole,
}

impl std::fmt::Display for TraceOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.member.as_ref().map_or(Ok(()), |member| write!(f, ":{member}"))
    }
}

impl Trace {
    /// Number of events of the file, metadata events included.
    pub fn event_count(&self) -> u64 {
        self.phases.values().sum()
    }

    /// What kind of event a slice is.
    pub fn kind(&self, row: u32) -> EventKind {
        self.categories[usize::from(self.slices.category[row as usize])].kind
    }

    /// The name of a slice.
    pub fn name(&self, row: u32) -> &str {
        self.strings.get(self.slices.name[row as usize])
    }

    /// The thread or stream of a slice.
    pub fn track(&self, row: u32) -> &Track {
        &self.tracks[self.slices.track[row as usize].0 as usize]
    }

    /// The device a device row ran on: its argument, else its process id.
    pub fn device(&self, row: u32) -> i32 {
        let from_track = || self.track(row).pid.number().and_then(|pid| i32::try_from(pid).ok());
        self.slices.device(row).or_else(from_track).unwrap_or(-1)
    }

    /// The stream a device row ran on: its argument, else its thread id.
    pub fn stream(&self, row: u32) -> i32 {
        let from_track = || self.track(row).tid.number().and_then(|tid| i32::try_from(tid).ok());
        self.slices.stream(row).or_else(from_track).unwrap_or(-1)
    }

    /// The lines of Python an operator was called from, innermost first; empty where the file has
    /// no `Call stack`.
    pub fn stack(&self, row: u32) -> &[StackLine] {
        let text = self.slices.call_stack.get(row);
        text.and_then(|text| self.stacks.get(text)).map_or(&[], Vec::as_slice)
    }

    /// Takes the texts of [`Slices::call_stack`] apart.
    pub(crate) fn split_stacks(&mut self) {
        for (_, text) in self.slices.call_stack.iter() {
            if !self.stacks.contains_key(text) {
                let lines = self.strings.get(*text).split(';').map(str::trim).map(str::to_owned);
                let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
                let line = |line: &String| StackLine {
                    line: self.strings.intern(line),
                    function: self.strings.intern(&function_of(line)),
                };
                self.stacks.insert(*text, lines.iter().map(line).collect());
            }
        }
    }

    /// All rows, in the order of the file.
    pub fn rows(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.slices.len() as u32
    }

    /// Adds a slice, interning its texts.
    pub fn push(&mut self, slice: &NewSlice<'_>) -> u32 {
        let category = self.category(slice.category);
        let name = self.strings.intern(slice.name);
        let track = self.track_id(slice.pid.clone(), slice.tid.clone());
        let row = self.slices.push(category, name, track, slice);
        self.tell_mtia_events_apart(row);
        row
    }

    /// Gives rows without a category the kind that their process tells.
    pub(crate) fn recognize_rows_without_category(&mut self) {
        let Some(nameless) = self.categories.iter().position(|category| category.name.is_empty())
        else {
            return;
        };
        let kinds: Vec<EventKind> = self.tracks.iter().map(EventKind::from_process).collect();
        let mut by_kind: BTreeMap<EventKind, usize> = BTreeMap::new();
        for row in 0..self.slices.len() {
            if usize::from(self.slices.category[row]) != nameless {
                continue;
            }
            let kind = kinds[self.slices.track[row].0 as usize];
            if kind == EventKind::Other {
                continue;
            }
            let has_room = self.categories.len() < usize::from(u8::MAX);
            if !by_kind.contains_key(&kind) && has_room {
                by_kind.insert(kind, self.categories.len());
                self.categories.push(Category { name: String::new(), kind });
            }
            if let Some(category) = by_kind.get(&kind) {
                self.slices.category[row] = *category as u8;
            }
        }
    }

    /// Gives MTIA's copies and waits, which its category mixes with kernels, a category of the same
    /// name and their own kind, from a row on.
    pub(crate) fn tell_mtia_events_apart(&mut self, first_row: u32) {
        let is_mtia = |category: &Category| category.name == category::MTIA_EVENTS;
        let Some(mixed) = self.categories.iter().position(is_mtia) else { return };
        for (name, kind) in category::MTIA_KINDS {
            let is_own = |category: &Category| is_mtia(category) && category.kind == kind;
            let mut own = self.categories.iter().position(is_own);
            for row in first_row as usize..self.slices.len() {
                let is_one = usize::from(self.slices.category[row]) == mixed
                    && self.strings.get(self.slices.name[row]) == name;
                let has_room = self.categories.len() < usize::from(u8::MAX);
                if is_one && own.is_none() && has_room {
                    own = Some(self.categories.len());
                    let name = category::MTIA_EVENTS.to_owned();
                    self.categories.push(Category { name, kind });
                }
                if let Some(own) = own.filter(|_| is_one) {
                    self.slices.category[row] = own as u8;
                }
            }
        }
    }

    /// The place of a category in [`Trace::categories`], added if new.
    ///
    /// A trace with more than 255 categories keeps the rest as its last one, "other".
    pub fn category(&mut self, name: &str) -> u8 {
        if let Some(at) = self.categories.iter().position(|category| category.name == name) {
            return at as u8;
        }
        let last = usize::from(u8::MAX);
        if self.categories.len() < last {
            self.categories.push(Category::new(name));
        } else if self.categories.len() == last {
            self.categories.push(Category::new("other"));
        }
        (self.categories.len() - 1) as u8
    }

    /// The place of a thread or stream in [`Trace::tracks`], added if new.
    pub fn track_id(&mut self, pid: TrackKey, tid: TrackKey) -> TrackId {
        // Traces have tens of tracks; readers keep their own index.
        let at = self.tracks.iter().position(|track| track.pid == pid && track.tid == tid);
        let at = at.unwrap_or_else(|| {
            self.tracks.push(Track::new(pid, tid));
            self.tracks.len() - 1
        });
        TrackId(at as u32)
    }
}

/// `train.py: step` of `train.py(12): step`.
fn function_of(line: &str) -> String {
    let parts = line.split_once('(').and_then(|(file, rest)| Some((file, rest.split_once(')')?.1)));
    parts.map_or_else(|| line.to_owned(), |(file, function)| format!("{file}{function}"))
}
