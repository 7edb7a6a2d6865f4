//! Defines the interface of a timeline format: detection, reading, rereading of arguments, and
//! writing.
//!
//! [`super::TIMELINES`] lists the implementations.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value};

use super::blocks::Blocks;
use crate::export::{ExportedEvents, Options};
use crate::merge::Merged;
use crate::store::Trace;

/// A file format that stores the timelines of one rank or several.
pub struct Timeline {
    pub name: &'static str,
    /// Extensions of the format's files in folders and archives, in lower case and without
    /// extensions of compression. If the list is empty, a file is read only if the user names it.
    pub extensions: &'static [&'static str],
    /// Whether a text with this beginning has the format.
    pub recognizes: fn(&[u8]) -> bool,
    pub read: ReadTimeline,
    /// Functions that write the format, or `None` if the format is only read.
    pub write: Option<&'static WriteTimeline>,
}

/// The two ways to read a format.
pub enum ReadTimeline {
    /// Reads one trace block by block on the given number of threads. Damage is counted as a loss.
    /// An error describes the actual content of the text.
    Blocks(fn(&mut dyn Blocks, usize) -> Result<Trace, String>),
    /// Reads a complete file, which contains one trace or several. A damaged file is rejected.
    Whole(WholeFile),
}

/// The arguments of several events, in the requested order.
pub type EventArguments = Vec<Map<String, Value>>;

/// Functions of a format that is read as a complete file.
pub struct WholeFile {
    /// Names the program that wrote a file with this beginning, if files of that program cannot be
    /// read.
    pub foreign_writer: fn(&[u8]) -> Option<&'static str>,
    /// Returns the traces of a file, or a description of the damage.
    pub read: fn(&[u8]) -> Result<Vec<Trace>, String>,
    /// Returns the arguments of the events with the given `slices.offset`, which must ascend. The
    /// map of an event without arguments is empty.
    pub arguments: fn(&[u8], &[u64]) -> Result<EventArguments, String>,
}

/// Functions that write a format.
pub struct WriteTimeline {
    /// Extensions that select the format, in lower case and without extensions of compression.
    pub extensions: &'static [&'static str],
    /// Writes all parts of a merged trace. The last argument is the path of a temporary file that
    /// the writer may use.
    pub write: fn(&mut dyn Write, &Merged<'_>, &Options, &Path) -> io::Result<ExportedEvents>,
}
