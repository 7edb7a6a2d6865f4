//! The interface of a timeline format: detection, reading, rereading of arguments, and writing.
//!
//! [`super::TIMELINES`] lists the implementations.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value};

use super::blocks::Blocks;
use crate::export::{ExportedEvents, Options};
use crate::merge::Merged;
use crate::store::Trace;

/// A file format that holds the timelines of one or several ranks.
pub struct Timeline {
    pub name: &'static str,
    /// Extensions of its files in folders and archives, lower case, without those of compression.
    /// If there are none, files are read only if a user names them.
    pub extensions: &'static [&'static str],
    /// Whether a text with this beginning is in the format.
    pub recognizes: fn(&[u8]) -> bool,
    pub read: ReadTimeline,
    /// Is `None` if the format is only read.
    pub write: Option<&'static WriteTimeline>,
}

/// The two ways to read a format.
pub enum ReadTimeline {
    /// Reads one trace block by block on the given number of threads. Damage is counted as loss;
    /// the error describes the actual content.
    Blocks(fn(&mut dyn Blocks, usize) -> Result<Trace, String>),
    /// Reads a complete file, which holds one or several traces. A damaged file is rejected.
    Whole(WholeFile),
}

/// The arguments of several events, in the requested order.
pub type EventArguments = Vec<Map<String, Value>>;

/// Functions of a format that is read as a complete file.
pub struct WholeFile {
    /// Names the program that wrote a file with this beginning, if its files cannot be read.
    pub foreign_writer: fn(&[u8]) -> Option<&'static str>,
    /// Returns the traces of a file, or a description of the damage.
    pub read: fn(&[u8]) -> Result<Vec<Trace>, String>,
    /// Returns the arguments of the events at the given `slices.offset`, which ascend. Empty for
    /// events without arguments.
    pub arguments: fn(&[u8], &[u64]) -> Result<EventArguments, String>,
}

/// Functions that write a format.
pub struct WriteTimeline {
    /// Extensions that select the format, lower case, without those of compression.
    pub extensions: &'static [&'static str],
    /// Writes all parts. The path is that of a temporary file the writer may use.
    pub write: fn(&mut dyn Write, &Merged<'_>, &Options, &Path) -> io::Result<ExportedEvents>,
}
