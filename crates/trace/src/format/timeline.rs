//! What a format of timelines offers: how its files are recognised, read, read again and written.
//!
//! Knows no format; [`super::TIMELINES`] lists them.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value};

use super::blocks::Blocks;
use crate::export::{ExportedEvents, Options};
use crate::merge::Merged;
use crate::store::Trace;

/// A format of files that hold the timelines of ranks.
pub struct Timeline {
    /// As messages name it.
    pub name: &'static str,
    /// Endings of its files in folders and archives, in lower case and without those of
    /// compression. None: its files are read only where a user names them.
    pub endings: &'static [&'static str],
    /// Whether a text that begins like this is of the format.
    pub recognises: fn(&[u8]) -> bool,
    /// How it is read.
    pub read: ReadTimeline,
    /// How it is written, if it is.
    pub write: Option<&'static WriteTimeline>,
}

/// How a format is read.
pub enum ReadTimeline {
    /// One trace, block by block, on so many threads. Damage is a loss of the trace; the error says
    /// what the text is instead.
    Blocks(fn(&mut dyn Blocks, usize) -> Result<Trace, String>),
    /// A whole file, which holds one or several traces. A damaged one is refused.
    Whole(WholeFile),
}

/// The arguments of each of some events.
pub type EventArguments = Vec<Map<String, Value>>;

/// A format that is read as a whole.
pub struct WholeFile {
    /// Who wrote a file with this beginning, if it cannot be read for that.
    pub foreign_writer: fn(&[u8]) -> Option<&'static str>,
    /// The traces of a file, or what is wrong with it.
    pub read: fn(&[u8]) -> Result<Vec<Trace>, String>,
    /// The arguments of events by the places that `slices.offset` names, ascending; empty where
    /// there are none.
    pub arguments: fn(&[u8], &[u64]) -> Result<EventArguments, String>,
}

/// How a format is written.
pub struct WriteTimeline {
    /// Endings of names that ask for it, in lower case and without those of compression.
    pub endings: &'static [&'static str],
    /// Writes all parts. The path is that of a temporary file the writer may use.
    pub write: fn(&mut dyn Write, &Merged<'_>, &Options, &Path) -> io::Result<ExportedEvents>,
}
