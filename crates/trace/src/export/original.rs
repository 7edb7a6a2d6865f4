//! The original arguments of a slice: rereads its source file once, in order.
//!
//! Holds a window of the text, never all of it. A changed file or a repaired text gives nothing:
//! the caller then writes the columns.

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

/// Bytes read at a time.
const BLOCK: usize = 256 << 10;
/// The longest event that is looked at.
const LONGEST: u64 = 16 << 20;

/// Keys and values of an event's `args`, in the order of the file.
#[derive(Debug, Default)]
pub struct ArgumentPairs<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

/// The texts of a trace's slices, to be asked for in order of rows.
pub struct Originals<'a> {
    trace: &'a Trace,
    window: Option<TextWindow>,
}

impl<'a> Originals<'a> {
    /// Opens the file a trace came from; without one there are no texts.
    pub fn open(trace: &'a Trace) -> Self {
        Self { trace, window: text_of(&trace.origin).ok().map(TextWindow::new) }
    }

    /// Nothing is read again.
    pub fn none(trace: &'a Trace) -> Self {
        Self { trace, window: None }
    }

    /// Whether there is a file to read again.
    pub fn are_there(&self) -> bool {
        self.window.is_some()
    }

    /// The arguments of a slice as the file has them; `None` if they cannot be had.
    pub fn arguments(&mut self, row: u32) -> Option<ArgumentPairs<'_>> {
        let offsets = &self.trace.slices.offset;
        let offset = offsets[row as usize];
        // An event ends before the next one begins.
        let next = offsets.get(row as usize + 1).copied().filter(|next| *next > offset);
        let end = next.unwrap_or(u64::MAX).min(offset.saturating_add(LONGEST));
        let text = self.window.as_mut()?.get(offset, end)?;
        let mut events =
            serde_json::Deserializer::from_slice(text).into_iter::<OriginalEvent<'_>>();
        let event = events.next()?.ok()?;
        (event.name == self.trace.name(row)).then_some(event.args)
    }
}

#[derive(Deserialize)]
struct OriginalEvent<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    args: ArgumentPairs<'a>,
}

#[derive(Deserialize)]
struct OriginalKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for ArgumentPairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
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

/// A part of a text that moves forward.
struct TextWindow {
    input: Box<dyn Read>,
    bytes: Vec<u8>,
    /// Where `bytes` begins in the text.
    start: u64,
    ended: bool,
}

impl TextWindow {
    fn new(input: Box<dyn Read>) -> Self {
        Self { input, bytes: Vec::new(), start: 0, ended: false }
    }

    /// The text from `from` to `to` or the end; `None` if it begins behind the end, or before what
    /// is held.
    fn get(&mut self, from: u64, to: u64) -> Option<&[u8]> {
        if from < self.start {
            return None;
        }
        while !self.ended && self.start + (self.bytes.len() as u64) < to {
            let skipped = (from - self.start).min(self.bytes.len() as u64) as usize;
            self.bytes.drain(..skipped);
            self.start += skipped as u64;
            // The end of the last event is not known: its beginning may be enough.
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

/// The uncompressed text of a file or of an archive's member.
fn text_of(origin: &TraceOrigin) -> io::Result<Box<dyn Read>> {
    if origin.path.as_os_str().is_empty() || origin.path == Path::new("-") {
        return Err(io::Error::other("a text that cannot be read again"));
    }
    let Some(member) = &origin.member else { return unpacked(File::open(&origin.path)?) };
    let mut archive = tar::Archive::new(unpacked(File::open(&origin.path)?)?);
    for entry in archive.entries()? {
        let entry = entry?;
        if entry.path()?.to_string_lossy() == member.as_str() {
            let (start, size) = (entry.raw_file_position(), entry.size());
            let mut text = unpacked(File::open(&origin.path)?)?;
            io::copy(&mut (&mut text).take(start), &mut io::sink())?;
            return unpacked(text.take(size));
        }
    }
    Err(io::Error::other("a member that is not there any more"))
}
