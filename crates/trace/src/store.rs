//! The columns of a trace: slices, flows, counters, instants, and the header.
//!
//! This is the only in-memory form of a trace, whether it was read from a file, recorded or
//! simulated. Times are absolute integer nanoseconds.

mod argument;
mod category;
mod cut;
mod header;
mod loss;
mod mark;
pub(crate) mod reserve;
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
pub use slice::{NewSlice, NumericTrack, Slices, TimeSpan};
pub use sparse::Sparse;
pub use string::{StringId, Strings};
pub use track::{Track, TrackId, TrackKey};

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The traces of one job, one per rank, ordered by rank.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// At least one, each with a unique rank.
    pub traces: Vec<Trace>,
}

/// One rank's trace: the events of one file.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Taken from the content, else the file's name, else the position among the files.
    pub rank: u32,
    /// Source file; empty for a trace that was never in a file.
    pub origin: TraceOrigin,
    /// Everything outside the list of events.
    pub header: TraceHeader,
    pub strings: Strings,
    /// Lines of Python for each text of [`Slices::call_stack`], innermost first.
    pub stacks: BTreeMap<StringId, Vec<StackLine>>,
    /// In order of first appearance.
    pub categories: Vec<Category>,
    /// Threads and streams, in order of first appearance.
    pub tracks: Vec<Track>,
    /// Events with a duration, in file order.
    pub slices: Slices,
    pub flows: Vec<Flow>,
    pub counters: Vec<Counter>,
    pub instants: Vec<Instant>,
    /// Events of the memory profiler.
    pub allocations: Vec<Allocation>,
    /// Number of events in the file by Chrome phase (`X`, `M`, `s`, `f`, `i`, …).
    pub phases: BTreeMap<String, u64>,
    pub losses: Losses,
    /// Set if the recording ended early.
    pub cut: Option<CutRecording>,
}

/// The source of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOrigin {
    /// The path as given; `-` for standard input.
    pub path: PathBuf,
    pub member: Option<String>,
    pub text_bytes: u64,
    pub encoding: Encoding,
}

/// The encoding of events in a file, which decides how arguments are read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Each event is a separate JSON text.
    #[default]
    Json,
    /// Only the format's own reader can decode an event, from the complete file.
    Whole,
}

impl std::fmt::Display for TraceOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.member.as_ref().map_or(Ok(()), |member| write!(f, ":{member}"))
    }
}

impl Trace {
    /// Returns the number of events in the file, including metadata events.
    pub fn event_count(&self) -> u64 {
        self.phases.values().sum()
    }

    /// Returns the kind of event a slice is.
    pub fn kind(&self, row: u32) -> EventKind {
        self.categories[usize::from(self.slices.category[row as usize])].kind
    }

    /// Returns the name of a slice.
    pub fn name(&self, row: u32) -> &str {
        self.strings.get(self.slices.name[row as usize])
    }

    /// Returns the thread or stream of a slice.
    pub fn track(&self, row: u32) -> &Track {
        &self.tracks[self.slices.track[row as usize].0 as usize]
    }

    /// Returns the device of a device row: its argument, else its process id.
    pub fn device(&self, row: u32) -> i32 {
        let from_track = || self.track(row).pid.number().and_then(|pid| i32::try_from(pid).ok());
        self.slices.device(row).or_else(from_track).unwrap_or(-1)
    }

    /// Returns the stream of a device row: its argument, else its thread id.
    pub fn stream(&self, row: u32) -> i32 {
        let from_track = || self.track(row).tid.number().and_then(|tid| i32::try_from(tid).ok());
        self.slices.stream(row).or_else(from_track).unwrap_or(-1)
    }

    /// Returns the lines of Python that called an operator, innermost first. Empty if the file has
    /// no `Call stack`.
    pub fn stack(&self, row: u32) -> &[StackLine] {
        let text = self.slices.call_stack.get(row);
        text.and_then(|text| self.stacks.get(text)).map_or(&[], Vec::as_slice)
    }

    /// Parses the texts of [`Slices::call_stack`] into lines.
    pub(crate) fn split_stacks(&mut self) {
        for (_, text) in self.slices.call_stack.iter() {
            if !self.stacks.contains_key(text) {
                let lines = self.strings.get(*text).split(';').map(str::trim).map(str::to_owned);
                let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
                let line = |line: &String| StackLine {
                    line: self.strings.intern(line),
                    function: self.strings.intern(&function_name(line)),
                };
                self.stacks.insert(*text, lines.iter().map(line).collect());
            }
        }
    }

    /// Returns all rows in file order.
    pub fn rows(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.slices.len() as u32
    }

    /// Appends a slice and interns its texts. Returns its row.
    pub fn push(&mut self, slice: &NewSlice<'_>) -> u32 {
        let category = self.category(slice.category);
        let name = self.strings.intern(slice.name);
        let track = self.track_id(slice.pid.clone(), slice.tid.clone());
        let row = self.slices.push(category, name, track, slice);
        self.separate_mtia_events(row);
        row
    }

    /// Sets the kind of rows without a category, derived from their process.
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

    /// Separates MTIA's copies and waits from its kernels, with which they share a category, from a
    /// row on. They get a category of the same name with their own kind.
    pub(crate) fn separate_mtia_events(&mut self, first_row: u32) {
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

    /// Returns the index of a category in [`Trace::categories`], and adds the category if it is
    /// new.
    ///
    /// Beyond 255 categories, all others share the last one, "other".
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

    /// Returns the index of a thread or stream in [`Trace::tracks`], and adds the track if it is
    /// new.
    pub fn track_id(&mut self, pid: TrackKey, tid: TrackKey) -> TrackId {
        // Traces have tens of tracks, and readers keep their own index, so a linear search is
        // enough.
        let at = self.tracks.iter().position(|track| track.pid == pid && track.tid == tid);
        let at = at.unwrap_or_else(|| {
            self.tracks.push(Track::new(pid, tid));
            self.tracks.len() - 1
        });
        TrackId(at as u32)
    }
}

/// Removes the line number: `train.py(12): step` becomes `train.py: step`.
fn function_name(line: &str) -> String {
    let parts = line.split_once('(').and_then(|(file, rest)| Some((file, rest.split_once(')')?.1)));
    parts.map_or_else(|| line.to_owned(), |(file, function)| format!("{file}{function}"))
}
