//! Reads files that [`super::write`] wrote back into the original traces. Each packet sequence with
//! rowmill's own fields is one rank.
//!
//! A file is written track by track. A truncated file therefore lacks whole tracks, and it is
//! unknown which part of the recording remains. Therefore truncated files are rejected, and so are
//! files of other programs.

mod annotation;
mod argument;
mod order;
mod part;
mod wire;

use serde_json::{Map, Value};

use super::field::{own, packet, trace};
use super::wire::unzigzag;
use crate::store::Trace;
use part::PartReader;
use wire::{Broken, Field};

/// The program that wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileWriter {
    /// A version of rowmill that writes the same fields as this one.
    Rowmill,
    /// A version of rowmill, usually a later one, whose fields this version does not know.
    OtherRowmill,
    Foreign,
}

/// Identifies the writer of the Perfetto file that begins with `head`. Returns `None` if it is not
/// a Perfetto file.
pub fn announced(head: &[u8]) -> Option<FileWriter> {
    let (first, end) = wire::packet(head, 0).ok()?;
    let mut packet = Packet::default();
    let is_ours = packet.fill(first).is_ok() && !packet.own.is_empty();
    // Another packet or the end of the file must follow, so that files of other formats do not
    // match by chance.
    let is_trace = packet.is_known && head.get(end).is_none_or(|next| *next == PACKET_KEY);
    match is_ours {
        true => {
            let mut file = PerfettoFile::default();
            file.own(packet.own).ok()?;
            Some(if file.version == own::CURRENT {
                FileWriter::Rowmill
            } else {
                FileWriter::OtherRowmill
            })
        }
        false => is_trace.then_some(FileWriter::Foreign),
    }
}

const PACKET_KEY: u8 = (trace::PACKET << 3 | 2) as u8;

/// Returns the traces of a file, in the order in which they were written.
///
/// Times, ids, columns and header equal those of the source trace, with two exceptions. A step of
/// an arrow becomes a begin. The ids of a merged file keep the prefix of their rank.
///
/// # Errors
/// A description of the unexpected value and its position.
pub fn read(bytes: &[u8]) -> Result<Vec<Trace>, String> {
    let mut file = PerfettoFile::default();
    each_packet(bytes, |found, at| file.packet(found, at))?;
    file.finish(bytes.len())
}

/// Returns the arguments of the events in the packets at the offsets `places`, which must ascend.
/// The map of an event without arguments is empty.
///
/// # Errors
/// A description of the unexpected value and its position.
pub fn arguments(bytes: &[u8], places: &[u64]) -> Result<Vec<Map<String, Value>>, String> {
    let mut keys = annotation::Keys::default();
    let mut all_arguments = vec![Map::new(); places.len()];
    each_packet(bytes, |packet, at| {
        keys.learn(packet.sequence, packet.interned)?;
        if let Ok(place) = places.binary_search(&at) {
            all_arguments[place] = keys.arguments(packet.sequence, packet.event)?;
        }
        Ok(())
    })?;
    Ok(all_arguments)
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

/// The fields of a packet that are read.
#[derive(Clone, Debug, Default)]
struct Packet<'a> {
    time: u64,
    sequence: u64,
    own: &'a [u8],
    event: &'a [u8],
    interned: &'a [u8],
    /// Whether the packet has a field that Perfetto defines for packets.
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

/// The state of reading a file.
#[derive(Default)]
struct PerfettoFile<'a> {
    version: u64,
    part_count: u64,
    moved: i64,
    /// Pairs of a packet sequence and the reader of its part.
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
        // The packets of different parts are not interleaved, so only the last part can match.
        let last = self.parts.last_mut();
        last.filter(|(known, _)| *known == sequence).map(|(_, part)| part)
    }

    /// Reads rowmill's own fields of a packet. If a part begins with the packet, the content of the
    /// part's field is returned.
    fn own(&mut self, content: &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
        let mut part = None;
        wire::each(content, |field, value| {
            match (field, value) {
                (own::VERSION, Field::Number(version)) => self.version = version,
                (own::PART_COUNT, Field::Number(count)) => self.part_count = count,
                (own::MOVED, Field::Number(moved)) => self.moved = unzigzag(moved),
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
