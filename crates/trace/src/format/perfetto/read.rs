//! Reads the TrackEvent files that [`super::write`] makes back into the traces they were written
//! from: every packet sequence with our marks is one rank.
//!
//! A file is written track by track, so a truncated one lacks whole tracks, and the remaining part
//! of the recording is unknown: it is refused, as are files of other programs.

mod annotation;
mod argument;
mod order;
mod part;
mod wire;

use serde_json::{Map, Value};

use super::field::{own, packet, trace};
use super::wire::unfolded;
use crate::store::Trace;
use part::PartReader;
use wire::{Broken, Field};

/// Who wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileWriter {
    /// We, in a form that this version reads.
    Rowmill,
    /// A later version of ours, or one before files could be read back.
    OtherRowmill,
    Foreign,
}

/// Who wrote the Perfetto file that begins with `head`; `None` if it is no such file.
pub fn announced(head: &[u8]) -> Option<FileWriter> {
    let (first, end) = wire::packet(head, 0).ok()?;
    let mut found = Packet::default();
    let is_ours = found.fill(first).is_ok() && !found.own.is_empty();
    // What follows is another packet, or nothing; other files do not say so by chance.
    let is_trace = found.is_known && head.get(end).is_none_or(|next| *next == PACKET_KEY);
    match is_ours {
        true => {
            let mut file = PerfettoFile::default();
            file.own(found.own).ok()?;
            Some(if file.version == own::CURRENT {
                FileWriter::Rowmill
            } else {
                FileWriter::OtherRowmill
            })
        }
        false => is_trace.then_some(FileWriter::Foreign),
    }
}

/// The byte every packet begins with.
const PACKET_KEY: u8 = (trace::PACKET << 3 | 2) as u8;

/// The traces of a file, in the order in which they were written.
///
/// Times, ids, columns and header are those of the trace that was written; a step of an arrow
/// becomes a begin of one, and a job's ids keep the prefix that a merged file gives them.
///
/// # Errors
/// The value found instead, and where.
pub fn read(bytes: &[u8]) -> Result<Vec<Trace>, String> {
    let mut file = PerfettoFile::default();
    each_packet(bytes, |found, at| file.packet(found, at))?;
    file.finish(bytes.len())
}

/// The arguments of events by the place of their packets, ascending; empty where there are none.
///
/// # Errors
/// As [`read`].
pub fn arguments(bytes: &[u8], places: &[u64]) -> Result<Vec<Map<String, Value>>, String> {
    let mut keys = annotation::Keys::default();
    let mut found = vec![Map::new(); places.len()];
    each_packet(bytes, |packet, at| {
        keys.learn(packet.sequence, packet.interned)?;
        if let Ok(place) = places.binary_search(&at) {
            found[place] = keys.arguments(packet.sequence, packet.event)?;
        }
        Ok(())
    })?;
    Ok(found)
}

fn each_packet<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(&Packet<'a>, u64) -> Result<(), Broken>,
) -> Result<(), String> {
    let mut at = 0;
    while at < bytes.len() {
        let told = |broken: Broken| format!("byte {at}: expected a packet, got {broken}");
        let (content, end) = wire::packet(bytes, at).map_err(told)?;
        let mut found = Packet::default();
        found.fill(content).and_then(|()| each(&found, at as u64)).map_err(told)?;
        at = end;
    }
    Ok(())
}

/// The fields we read of a packet.
#[derive(Clone, Debug, Default)]
struct Packet<'a> {
    time: u64,
    sequence: u64,
    own: &'a [u8],
    event: &'a [u8],
    interned: &'a [u8],
    /// Whether it has a field that packets of traces have.
    is_known: bool,
}

impl<'a> Packet<'a> {
    fn fill(&mut self, content: &'a [u8]) -> Result<(), Broken> {
        wire::each(content, |field, value| {
            self.is_known |= field <= packet::TRACK_DESCRIPTOR;
            match (field, value) {
                (packet::TIMESTAMP, Field::Number(time)) => self.time = time,
                (packet::SEQUENCE_ID, Field::Number(sequence)) => self.sequence = sequence,
                (packet::OWN, Field::Bytes(own)) => self.own = own,
                (packet::TRACK_EVENT, Field::Bytes(event)) => self.event = event,
                (packet::INTERNED_DATA, Field::Bytes(interned)) => self.interned = interned,
                _ => {}
            }
            Ok(())
        })
    }
}

/// A file being read.
#[derive(Default)]
struct PerfettoFile<'a> {
    version: u64,
    part_count: u64,
    moved: i64,
    /// By packet sequence.
    parts: Vec<(u64, PartReader<'a>)>,
}

impl<'a> PerfettoFile<'a> {
    fn packet(&mut self, found: &Packet<'a>, at: u64) -> Result<(), Broken> {
        if !found.own.is_empty() {
            if let Some(part) = self.own(found.own)? {
                self.parts.push((found.sequence, PartReader::new(part, self.moved)?));
            } else if let Some(part) = self.part(found.sequence) {
                part.own(found.own)?;
            }
        }
        let Some(part) = self.part(found.sequence) else { return Ok(()) };
        part.learn(found.interned)?;
        if found.event.is_empty() { Ok(()) } else { part.event(found.time, found.event, at) }
    }

    fn part(&mut self, sequence: u64) -> Option<&mut PartReader<'a>> {
        // Parts follow each other.
        let last = self.parts.last_mut();
        last.filter(|(known, _)| *known == sequence).map(|(_, part)| part)
    }

    /// What a mark says of the file; the part it begins.
    fn own(&mut self, content: &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
        let mut part = None;
        wire::each(content, |field, value| {
            match (field, value) {
                (own::VERSION, Field::Number(version)) => self.version = version,
                (own::PART_COUNT, Field::Number(count)) => self.part_count = count,
                (own::MOVED, Field::Number(moved)) => self.moved = unfolded(moved),
                (own::PART, Field::Bytes(content)) => part = Some(content),
                _ => {}
            }
            Ok(())
        })?;
        Ok(part)
    }

    fn finish(self, bytes: usize) -> Result<Vec<Trace>, String> {
        let ends_early = |what: String| format!("a file that ends early, at byte {bytes}: {what}");
        if self.parts.len() as u64 != self.part_count {
            let (got, expected) = (self.parts.len(), self.part_count);
            return Err(ends_early(format!("expected {expected} ranks, got {got}")));
        }
        let is_one_of_several = self.part_count > 1;
        let parts = self.parts.into_iter();
        parts.map(|(_, part)| part.finish(is_one_of_several).map_err(ends_early)).collect()
    }
}
