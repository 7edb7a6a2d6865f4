//! Writes the packets of a Perfetto file, and the texts that they share.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::field::{flag, interned, own, packet, snapshot, trace};
use super::wire::{message, sint64, text, unsigned};
use crate::merge::MergedPart;
use crate::store::StringId;

/// Number of bytes that are buffered before a write.
const COLLECTED: usize = 1 << 18;

/// Writes the packets of a file through a buffer.
pub struct Packets<'a, W: ?Sized> {
    out: &'a mut W,
    buffer: Vec<u8>,
    sequence: u64,
    is_first: bool,
    /// Nanoseconds that are subtracted from all times. The number is 0 unless a file begins before
    /// 1970. A file that does is shifted, because Perfetto's times are unsigned.
    moved: i64,
}

impl<'a, W: Write + ?Sized> Packets<'a, W> {
    /// Creates a writer for a file whose first time is known.
    pub fn new(out: &'a mut W, first_time: i64) -> Self {
        let buffer = Vec::with_capacity(2 * COLLECTED);
        Self { out, buffer, sequence: 1, is_first: true, moved: first_time.min(0) }
    }

    /// Starts a packet sequence, which does not share texts with earlier sequences.
    pub fn begin_sequence(&mut self, sequence: u64) {
        self.sequence = sequence;
        self.is_first = true;
    }

    /// Writes the first packet of a file, which states that times are Unix times and marks the file
    /// as written by rowmill.
    pub fn clock(&mut self, time: i64, part_count: usize) -> io::Result<()> {
        let (time, moved) = (self.moment(time), self.moved);
        self.packet(|out| {
            unsigned(out, packet::TIMESTAMP, time);
            message(out, packet::CLOCK_SNAPSHOT, |out| {
                for clock in [snapshot::REALTIME, snapshot::BOOTTIME] {
                    message(out, snapshot::CLOCKS, |out| {
                        unsigned(out, snapshot::CLOCK_ID, clock);
                        unsigned(out, snapshot::CLOCK_TIMESTAMP, time);
                    });
                }
            });
            message(out, packet::OWN, |out| {
                unsigned(out, own::VERSION, own::CURRENT);
                unsigned(out, own::PART_COUNT, part_count as u64);
                sint64(out, own::MOVED, moved);
            });
        })
    }

    /// Writes a packet with fields that only rowmill reads.
    pub fn own(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.packet(|out| message(out, packet::OWN, fill))
    }

    /// Writes the descriptor of a track.
    pub fn track(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.packet(|out| message(out, packet::TRACK_DESCRIPTOR, fill))
    }

    /// Writes an event, together with the texts that it is the first to use.
    pub fn event(
        &mut self,
        time: i64,
        interned: &mut Interned<'_>,
        fill: impl FnOnce(&mut Vec<u8>, &mut Interned<'_>),
    ) -> io::Result<()> {
        let time = self.moment(time);
        self.packet(|out| {
            unsigned(out, packet::TIMESTAMP, time);
            message(out, packet::TRACK_EVENT, |out| fill(out, interned));
            if !interned.fresh.is_empty() {
                message(out, packet::INTERNED_DATA, |out| out.append(&mut interned.fresh));
            }
        })
    }

    /// Writes the remaining buffered bytes.
    pub fn end(self) -> io::Result<()> {
        self.out.write_all(&self.buffer)
    }

    fn moment(&self, time: i64) -> u64 {
        time.saturating_sub(self.moved).unsigned_abs()
    }

    fn packet(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        if self.buffer.len() >= COLLECTED {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        // The first packet of a sequence must tell readers to discard older interned texts.
        let cleared = if self.is_first { flag::CLEARED } else { 0 };
        self.is_first = false;
        message(&mut self.buffer, trace::PACKET, |out| {
            fill(out);
            unsigned(out, packet::SEQUENCE_ID, self.sequence);
            unsigned(out, packet::SEQUENCE_FLAGS, cleared | flag::NEEDS_INTERNED);
        });
        Ok(())
    }
}

/// The texts of a part that were already written, and the texts that the next packet must include.
pub struct Interned<'a> {
    part: &'a MergedPart<'a>,
    names: Vec<bool>,
    categories: Vec<bool>,
    annotations: BTreeMap<String, u64>,
    fresh: Vec<u8>,
}

impl<'a> Interned<'a> {
    /// Creates a state in which no text was written yet.
    pub fn new(part: &'a MergedPart<'a>) -> Self {
        Self {
            part,
            names: vec![false; part.trace.strings.len()],
            categories: vec![false; part.trace.categories.len()],
            annotations: BTreeMap::new(),
            fresh: Vec::new(),
        }
    }

    /// Returns the interned id of an event's name.
    pub fn name(&mut self, name: StringId) -> u64 {
        let iid = u64::from(name.0) + 1;
        if !std::mem::replace(&mut self.names[name.0 as usize], true) {
            push(&mut self.fresh, interned::EVENT_NAME, iid, self.part.trace.strings.get(name));
        }
        iid
    }

    /// Returns the interned id of a category.
    pub fn category(&mut self, category: u8) -> u64 {
        let iid = u64::from(category) + 1;
        let at = usize::from(category);
        if !std::mem::replace(&mut self.categories[at], true) {
            let name = &self.part.trace.categories[at].name;
            push(&mut self.fresh, interned::CATEGORY, iid, name);
        }
        iid
    }

    /// Returns the interned id of an argument's key.
    pub fn annotation(&mut self, key: &str) -> u64 {
        if let Some(iid) = self.annotations.get(key) {
            return *iid;
        }
        let iid = self.annotations.len() as u64 + 1;
        self.annotations.insert(key.to_owned(), iid);
        push(&mut self.fresh, interned::ANNOTATION_NAME, iid, key);
        iid
    }
}

fn push(out: &mut Vec<u8>, field: u32, iid: u64, name: &str) {
    message(out, field, |out| {
        unsigned(out, interned::IID, iid);
        text(out, interned::NAME, name);
    });
}
