//! Stores a trace by columns: slices, flows, counters, instants, and the header.
//!
//! Every trace has this in-memory form, whether it was read from a file, recorded or simulated. All
//! times are absolute integer nanoseconds.

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
    /// A job has at least one trace, and each trace has a unique rank.
    pub traces: Vec<Trace>,
}

/// One rank's trace: the events of one file.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The rank is taken from the file's content, else from the file's name, else from the file's
    /// position among the files of the job.
    pub rank: u32,
    /// The file from which the trace was read, with an empty path for a trace that was never in a
    /// file.
    pub origin: TraceOrigin,
    /// The keys of the file outside its list of events, such as the devices and the distributed
    /// job.
    pub header: TraceHeader,
    pub strings: Strings,
    /// Python source lines for each call-stack text of [`Slices::call_stack`], innermost line
    /// first.
    pub stacks: BTreeMap<StringId, Vec<StackLine>>,
    /// Event categories in order of first appearance. [`Slices::category`] is an index into this
    /// list.
    pub categories: Vec<Category>,
    /// Threads and streams, in order of first appearance in the file.
    pub tracks: Vec<Track>,
    /// Events with a duration, in file order.
    pub slices: Slices,
    pub flows: Vec<Flow>,
    pub counters: Vec<Counter>,
    pub instants: Vec<Instant>,
    /// Allocations and frees that PyTorch's memory profiler recorded.
    pub allocations: Vec<Allocation>,
    /// Number of events in the file for each Chrome event phase (`X`, `M`, `s`, `f`, `i`, …).
    pub phases: BTreeMap<String, u64>,
    pub losses: Losses,
    /// Description of the missing events, or `None` for a recording that did not end early.
    pub cut: Option<CutRecording>,
}

/// The file, archive member and encoding from which a trace was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOrigin {
    /// The path as the caller gave it, or `-` for standard input.
    pub path: PathBuf,
    pub member: Option<String>,
    pub text_bytes: u64,
    pub encoding: Encoding,
}

/// Tells how the events of a file are encoded, which decides how their arguments are read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Each event is a separate JSON text at a known offset, so that it can be read again alone.
    #[default]
    Json,
    /// Events cannot be decoded one by one. Only the format's own reader can decode an event, and
    /// the reader needs the complete file.
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

    /// Returns the device of a device row: its `device` argument, else the process id of its track.
    pub fn device(&self, row: u32) -> i32 {
        // A device row without the argument is on a track whose process id is the device's ordinal.
        let from_track = || self.track(row).pid.number().and_then(|pid| i32::try_from(pid).ok());
        self.slices.device(row).or_else(from_track).unwrap_or(-1)
    }

    /// Returns the stream of a device row: its `stream` argument, else the thread id of its track.
    pub fn stream(&self, row: u32) -> i32 {
        let from_track = || self.track(row).tid.number().and_then(|tid| i32::try_from(tid).ok());
        self.slices.stream(row).or_else(from_track).unwrap_or(-1)
    }

    /// Returns the Python source lines that called an operator, innermost first. The list is empty
    /// if the file has no `Call stack` argument.
    pub fn stack(&self, row: u32) -> &[StackLine] {
        let text = self.slices.call_stack.get(row);
        text.and_then(|text| self.stacks.get(text)).map_or(&[], Vec::as_slice)
    }

    /// Parses the call-stack texts of [`Slices::call_stack`] into lines, and stores them in
    /// [`Trace::stacks`].
    pub(crate) fn split_stacks(&mut self) {
        for (_, text) in self.slices.call_stack.iter() {
            // Many operators have the same call stack, so each text is split only once.
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

    /// Iterates over all rows of the trace in file order.
    pub fn rows(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.slices.len() as u32
    }

    /// Appends a slice, interns its texts, and returns its row.
    pub fn push(&mut self, slice: &NewSlice<'_>) -> u32 {
        let category = self.category(slice.category);
        let name = self.strings.intern(slice.name);
        let track = self.track_id(slice.pid.clone(), slice.tid.clone());
        let row = self.slices.push(category, name, track, slice);
        self.separate_mtia_events(row);
        row
    }

    /// Assigns a kind to the rows whose category is empty. The kind is derived from the name of the
    /// row's process.
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

    /// Gives MTIA's copies and waits their own kinds, from row `first_row` on. In the file, copies
    /// and waits share one category with MTIA's kernels. Each of the three kinds gets a category of
    /// the same name.
    pub(crate) fn separate_mtia_events(&mut self, first_row: u32) {
        let is_mtia = |category: &Category| category.name == category::MTIA_EVENTS;
        let Some(mixed) = self.categories.iter().position(is_mtia) else { return };
        for (name, kind) in category::MTIA_KINDS {
            let is_own = |category: &Category| is_mtia(category) && category.kind == kind;
            let mut own = self.categories.iter().position(is_own);
            for row in first_row as usize..self.slices.len() {
                let is_one = usize::from(self.slices.category[row]) == mixed
                    && self.strings.get(self.slices.name[row]) == name;
                // The category of a row is a `u8`, so only 255 categories and "other" fit.
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
    /// The index is a `u8`, so all categories beyond the 255th share one category named "other".
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
        // A trace has only tens of tracks, and readers keep their own index, so a linear search is
        // fast enough.
        let at = self.tracks.iter().position(|track| track.pid == pid && track.tid == tid);
        let at = at.unwrap_or_else(|| {
            self.tracks.push(Track::new(pid, tid));
            self.tracks.len() - 1
        });
        TrackId(at as u32)
    }
}

/// Removes the line number from a Python source line: `train.py(12): step` becomes `train.py:
/// step`.
fn function_name(line: &str) -> String {
    let parts = line.split_once('(').and_then(|(file, rest)| Some((file, rest.split_once(')')?.1)));
    parts.map_or_else(|| line.to_owned(), |(file, function)| format!("{file}{function}"))
}
