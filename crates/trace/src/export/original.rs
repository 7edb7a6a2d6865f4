//! Rereads the original arguments of slices from the source file, in one sequential pass.
//!
//! Only a window of the text is in memory. If the file has changed or its text was repaired, no
//! arguments are returned, and the caller writes the arguments in the columns instead.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::packed::unpacked;
use crate::store::{Trace, TraceOrigin};

const BLOCK: usize = 256 << 10;
/// Largest number of bytes of an event that is read again. Longer events are skipped.
const LONGEST: u64 = 16 << 20;

/// Keys and values of an event's `args`, in file order.
#[derive(Debug, Default)]
pub struct ArgumentPairs<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

/// Reads the texts of a trace's slices. Rows must be requested in ascending order.
pub struct Originals<'a> {
    trace: &'a Trace,
    window: Option<TextWindow>,
}

impl<'a> Originals<'a> {
    /// Opens the source file of a trace. If the file cannot be opened, no texts are available.
    pub fn open(trace: &'a Trace) -> Self {
        Self { trace, window: open_text(&trace.origin).ok().map(TextWindow::new) }
    }

    /// Creates a reader that returns no texts.
    pub fn none(trace: &'a Trace) -> Self {
        Self { trace, window: None }
    }

    /// Whether the source file could be opened.
    pub fn is_available(&self) -> bool {
        self.window.is_some()
    }

    /// Returns the arguments of a slice as written in the file, or `None` if they cannot be read.
    pub fn arguments(&mut self, row: u32) -> Option<ArgumentPairs<'_>> {
        let offsets = &self.trace.slices.offset;
        let offset = offsets[row as usize];
        // The start of the next event limits the length of this event.
        let next = offsets.get(row as usize + 1).copied().filter(|next| *next > offset);
        let end = next.unwrap_or(u64::MAX).min(offset.saturating_add(LONGEST));
        let text = self.window.as_mut()?.get(offset, end)?;
        let mut events =
            serde_json::Deserializer::from_slice(text).into_iter::<OriginalEvent<'_>>();
        let event = events.next()?.ok()?;
        // A different name at the offset means that the file has changed since it was read.
        (event.name == self.trace.name(row)).then_some(event.args)
    }
}

/// The part of an event that is deserialized: its name and its arguments.
#[derive(Deserialize)]
struct OriginalEvent<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    args: ArgumentPairs<'a>,
}

/// The key of an argument, which borrows from the file's text unless it contains escapes.
#[derive(Deserialize)]
struct OriginalKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ArgumentPairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// Visitor that collects the arguments as pairs, in the order of the file.
        struct Filled;

        impl<'de> Visitor<'de> for Filled {
            type Value = ArgumentPairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::with_capacity(16);
                while let Some((OriginalKey(key), value)) =
                    map.next_entry::<OriginalKey<'de>, &'de RawValue>()?
                {
                    pairs.push((key, value));
                }
                Ok(ArgumentPairs(pairs))
            }
        }

        from.deserialize_map(Filled)
    }
}

/// A window of text that only moves forward.
struct TextWindow {
    input: Box<dyn Read>,
    bytes: Vec<u8>,
    /// Offset of `bytes` in the uncompressed text.
    start: u64,
    ended: bool,
}

impl TextWindow {
    fn new(input: Box<dyn Read>) -> Self {
        Self { input, bytes: Vec::new(), start: 0, ended: false }
    }

    /// Returns the text from `from` to `to`, or to the end of the file. Returns `None` if `from`
    /// lies beyond the end or before the window.
    fn get(&mut self, from: u64, to: u64) -> Option<&[u8]> {
        if from < self.start {
            return None;
        }
        while !self.ended && self.start + (self.bytes.len() as u64) < to {
            let skipped = (from - self.start).min(self.bytes.len() as u64) as usize;
            self.bytes.drain(..skipped);
            self.start += skipped as u64;
            // The length of the last event is unknown, so a window that is longer than any event is
            // enough.
            let is_ample = self.bytes.len() as u64 >= LONGEST;
            if is_ample || self.read().is_err() {
                break;
            }
        }
        let first = usize::try_from(from - self.start).ok()?;
        let last = usize::try_from(to - self.start).ok()?.min(self.bytes.len());
        self.bytes.get(first..last)
    }

    fn read(&mut self) -> io::Result<()> {
        let held = self.bytes.len();
        self.bytes.resize(held + BLOCK, 0);
        let read = self.input.read(&mut self.bytes[held..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.bytes.truncate(held + count);
        self.ended = count == 0;
        read.map(drop)
    }
}

/// Opens the uncompressed text of a file or of an archive member.
fn open_text(origin: &TraceOrigin) -> io::Result<Box<dyn Read>> {
    if origin.path.as_os_str().is_empty() || origin.path == Path::new("-") {
        return Err(io::Error::other("a text that cannot be read again"));
    }
    let Some(member) = &origin.member else { return unpacked(File::open(&origin.path)?) };
    let mut archive = tar::Archive::new(unpacked(File::open(&origin.path)?)?);
    for entry in archive.entries()? {
        let entry = entry?;
        if entry.path()?.to_string_lossy() == member.as_str() {
            // The `tar` crate cannot return an entry without the archive, so the text is opened
            // again.
            let (start, size) = (entry.raw_file_position(), entry.size());
            let mut text = unpacked(File::open(&origin.path)?)?;
            io::copy(&mut (&mut text).take(start), &mut io::sink())?;
            return unpacked(text.take(size));
        }
    }
    Err(io::Error::other("the archive member no longer exists"))
}
