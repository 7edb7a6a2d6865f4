//! Writes rows as lines of Chrome's JSON, without regard to the meaning of the rows.

use std::fmt;
use std::io::{self, Write};

use schema::Nanos;
use serde::Serialize;

use super::number;

/// Ordinal of the pseudo-device that represents the thread pool.
pub const DEVICE: u32 = 0;
/// Number of the pool's only stream. The number is not 0, because some readers take stream 0 for
/// the default stream and exclude it from iterations.
pub const STREAM: u64 = 1;

/// A track of the timeline: a thread of a process, or a stream of a device.
#[derive(Clone, Copy, Debug)]
pub struct Track {
    pub pid: u32,
    pub tid: u64,
}

/// A complete event (phase `X`) before it is formatted.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    pub category: &'static str,
    pub name: &'a str,
    pub track: Track,
    pub start: Nanos,
    pub end: Nanos,
}

/// One end of the arrow from a launch to its kernel.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub track: Track,
    pub at: Nanos,
    pub id: u64,
}

/// The two ends of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Target,
}

/// Writes rows into the list of events of a file.
pub struct RowWriter<'a, W> {
    out: &'a mut W,
    is_empty: bool,
}

impl<'a, W: Write> RowWriter<'a, W> {
    /// Creates a writer for a list whose opening bracket was already written.
    pub fn new(out: &'a mut W) -> Self {
        Self { out, is_empty: true }
    }

    /// Writes a complete event with its arguments.
    pub fn slice(&mut self, slice: Slice<'_>, arguments: &impl Serialize) -> io::Result<()> {
        self.separate()?;
        let Slice { category, name, track: Track { pid, tid }, start, end } = slice;
        let (name, arguments) = (json(name)?, json(arguments)?);
        let (ts, dur) = (Micros(start.0), Micros(end.0 - start.0));
        write!(
            self.out,
            "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": {name}, \"pid\": {pid}, \
             \"tid\": {tid}, \"ts\": {ts}, \"dur\": {dur}, \"args\": {arguments}}}"
        )
    }

    /// Writes one end of an arrow.
    pub fn flow(&mut self, flow: Flow, end: End) -> io::Result<()> {
        self.separate()?;
        let Flow { track: Track { pid, tid }, at, id } = flow;
        let (phase, binding) = match end {
            End::Source => ("s", ""),
            End::Target => ("f", ", \"bp\": \"e\""),
        };
        let ts = Micros(at.0);
        write!(
            self.out,
            "{{\"ph\": \"{phase}\", \"id\": {id}, \"cat\": \"ac2g\", \"name\": \"ac2g\", \
             \"pid\": {pid}, \"tid\": {tid}, \"ts\": {ts}{binding}}}"
        )
    }

    /// Writes the name, label and display order of a process.
    pub fn name_process(
        &mut self,
        track: Track,
        name: &str,
        labels: &str,
        order: i64,
    ) -> io::Result<()> {
        let track = Track { tid: 0, ..track };
        self.metadata(track, "process_name", "name", &name)?;
        self.metadata(track, "process_labels", "labels", &labels)?;
        self.metadata(track, "process_sort_index", "sort_index", &order)
    }

    /// Writes the name and display order of a thread.
    pub fn name_thread(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.metadata(track, "thread_name", "name", &name)?;
        self.metadata(track, "thread_sort_index", "sort_index", &track.tid)
    }

    fn metadata(
        &mut self,
        Track { pid, tid }: Track,
        kind: &str,
        key: &str,
        value: &impl Serialize,
    ) -> io::Result<()> {
        self.separate()?;
        let value = json(value)?;
        write!(
            self.out,
            "{{\"ph\": \"M\", \"name\": \"{kind}\", \"pid\": {pid}, \"tid\": {tid}, \
             \"ts\": 0.000, \"args\": {{\"{key}\": {value}}}}}"
        )
    }

    fn separate(&mut self) -> io::Result<()> {
        let separator = if self.is_empty { "\n    " } else { ",\n    " };
        self.is_empty = false;
        self.out.write_all(separator.as_bytes())
    }
}

fn json(value: &(impl Serialize + ?Sized)) -> io::Result<String> {
    Ok(serde_json::to_string(value)?)
}

/// Nanoseconds that are printed as microseconds with exactly three decimals.
#[derive(Clone, Copy, Debug)]
struct Micros(i64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(24);
        number::push_micros(&mut text, self.0);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}
