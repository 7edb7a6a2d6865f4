//! Writes any trace as Perfetto's TrackEvent protobuf, with exact nanoseconds and with lanes for
//! overlapping slices.
//!
//! Each part is a packet sequence with its own interned texts. Slices are written track by track,
//! so that begin and end events at the same time appear in nesting order.

mod annotation;
mod arrow;
mod field;
mod mark;
mod packet;
pub mod read;
mod spill;
mod track;
mod wire;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use super::timeline::{ReadTimeline, Timeline, WholeFile, WriteTimeline};
use crate::export::argument::{self, ArgumentValue, ColumnPlaces};
use crate::export::original::Originals;
use crate::export::{ExportedEvents, Options, WhichArguments, layout};
use crate::lanes::{self, SliceLanes};
use crate::merge::{Merged, MergedPart};
use arrow::Arrows;
use field::event;
use packet::{Interned, Packets};
use read::FileWriter;
use spill::{Filling, Spill};
use track::{Numbers, Tracks};
use wire::{double, text, unsigned};

/// Reads and writes Perfetto's TrackEvent protobuf. A file is read only if the user names it. If
/// Perfetto files in folders were read too, the traces from which they were made would count twice.
pub static TIMELINE: Timeline = Timeline {
    name: "Perfetto",
    extensions: &[],
    recognizes: |head| read::announced(head).is_some(),
    read: ReadTimeline::Whole(WholeFile {
        foreign_writer: |head| match read::announced(head)? {
            FileWriter::Rowmill => None,
            FileWriter::OtherRowmill => Some("a later version of rowmill"),
            FileWriter::Foreign => Some("another program, or an earlier rowmill,"),
        },
        read: read::read,
        arguments: read::arguments,
    }),
    write: Some(&WRITER),
};

/// Writes files that have Perfetto's own extensions.
pub static WRITER: WriteTimeline = WriteTimeline {
    extensions: &[".pftrace", ".perfetto-trace"],
    write: |out, merged, options, spill| write(out, merged, options, spill),
};

/// Writes all parts of a merged trace. Overlapping slices always get lanes, because the format
/// cannot express them otherwise.
///
/// # Errors
/// Returns the errors of writing to `out` and to the temporary file `spill`, which exists only
/// during the call.
pub fn write(
    out: &mut (impl Write + ?Sized),
    merged: &Merged<'_>,
    options: &Options,
    spill: &Path,
) -> io::Result<ExportedEvents> {
    let mut written = ExportedEvents::default();
    let first_time = merged.first_time().unwrap_or(0);
    let mut packets = Packets::new(out, first_time);
    packets.clock(first_time, merged.parts.len())?;
    track::root(&mut packets)?;
    let processes = layout::processes(merged);
    let (mut numbers, mut next_arrow) = (Numbers::default(), 1);
    for (place, part) in merged.parts.iter().enumerate() {
        packets.begin_sequence(place as u64 + 1);
        let lanes = lanes::assign(&part.trace.slices, part.trace.tracks.len());
        let own: Vec<_> =
            processes.iter().enumerate().filter(|(_, one)| one.part == place).collect();
        let tracks = track::write(&mut packets, part, &own, &lanes, &mut numbers)?;
        let arrows = Arrows::collect(part, &lanes, &mut next_arrow);
        mark::part(&mut packets, part, &arrows)?;
        mark::tracks(&mut packets, part, &tracks)?;
        mark::order(&mut packets, part.trace, &lanes)?;
        mark::cut(&mut packets, part, &mut numbers, first_time)?;
        let interned = Interned::new(part);
        let mut events =
            PartEvents { packets: &mut packets, interned, part, tracks, written: &mut written };
        let mut arguments = match options.arguments {
            WhichArguments::All => events.spill(spill)?,
            WhichArguments::Typed => None,
        };
        events.slices(&lanes, &arrows, &mut arguments)?;
        events.arrows(&arrows)?;
        events.instants()?;
        events.counters(&mut numbers)?;
        events.computed(options, &mut numbers)?;
    }
    packets.end()?;
    Ok(written)
}

/// Writes the events of one part.
struct PartEvents<'a, 'w, W: ?Sized> {
    packets: &'a mut Packets<'w, W>,
    interned: Interned<'a>,
    part: &'a MergedPart<'a>,
    tracks: Tracks,
    written: &'a mut ExportedEvents,
}

impl<W: Write + ?Sized> PartEvents<'_, '_, W> {
    /// Encodes all arguments into a temporary file, in the order of the source file.
    fn spill(&mut self, path: &Path) -> io::Result<Option<Spill>> {
        let part = self.part;
        let mut originals = Originals::open(part.trace);
        if !originals.is_available() {
            let texts = part.trace.slices.offset.iter().filter(|offset| **offset != u64::MAX);
            self.written.slices_typed_only += texts.count() as u64;
            return Ok(None);
        }
        let (mut filling, mut bytes) = (Filling::new(path)?, Vec::new());
        let mut places = ColumnPlaces::default();
        for row in part.trace.rows() {
            bytes.clear();
            if let Some(pairs) = originals.arguments(row) {
                argument::visit_original(part, &pairs, &mut |key, value| {
                    annotation::push(&mut bytes, &mut self.interned, key, value);
                });
            } else {
                let had_text = part.trace.slices.offset[row as usize] != u64::MAX;
                self.written.slices_typed_only += u64::from(had_text);
                argument::visit_columns(part, row, &mut places, &mut |key, value| {
                    annotation::push(&mut bytes, &mut self.interned, key, value);
                });
            }
            filling.push(&bytes)?;
        }
        filling.end().map(Some)
    }

    fn slices(
        &mut self,
        lanes: &SliceLanes,
        arrows: &Arrows,
        arguments: &mut Option<Spill>,
    ) -> io::Result<()> {
        let slices = &self.part.trace.slices;
        let mut places = ColumnPlaces::default();
        for track in 0..self.part.trace.tracks.len() {
            // End times of the open slices of each lane.
            let mut open: Vec<Vec<i64>> = vec![Vec::new(); lanes.count[track] as usize];
            for &row in lanes.rows(track) {
                let lane = lanes.lane[row as usize];
                let own = &mut open[lane as usize];
                // Slices that end before the next one begins are closed first, so that they nest in
                // the viewer.
                while let Some(end) = own.pop_if(|end| *end <= slices.start(row)) {
                    self.end(self.tracks.lane(track, lane), end)?;
                }
                own.push(slices.end(row));
                let spilled = match arguments {
                    Some(spill) => Some(spill.get(row)?),
                    None => None,
                };
                self.begin(row, self.tracks.lane(track, lane), arrows, spilled, &mut places)?;
            }
            for (lane, mut ends) in (0..).zip(open) {
                while let Some(end) = ends.pop() {
                    self.end(self.tracks.lane(track, lane), end)?;
                }
            }
        }
        self.written.slices += slices.len() as u64;
        self.written.slices_moved += lanes.moved();
        Ok(())
    }

    fn begin(
        &mut self,
        row: u32,
        track: u64,
        arrows: &Arrows,
        spilled: Option<&[u8]>,
        places: &mut ColumnPlaces,
    ) -> io::Result<()> {
        let (part, slices) = (self.part, &self.part.trace.slices);
        let at = row as usize;
        self.packets.event(part.time(slices.start[at]), &mut self.interned, |out, interned| {
            unsigned(out, event::TYPE, event::BEGIN);
            unsigned(out, event::TRACK, track);
            unsigned(out, event::CATEGORY_IID, interned.category(slices.category[at]));
            unsigned(out, event::NAME_IID, interned.name(slices.name[at]));
            arrows.push(out, row);
            match spilled {
                Some(spilled) => out.extend_from_slice(spilled),
                None => argument::visit_columns(part, row, places, &mut |key, value| {
                    annotation::push(out, interned, key, value);
                }),
            }
        })
    }

    fn end(&mut self, track: u64, time: i64) -> io::Result<()> {
        self.packets.event(self.part.time(time), &mut self.interned, |out, _| {
            unsigned(out, event::TYPE, event::END);
            unsigned(out, event::TRACK, track);
        })
    }

    /// Writes the ends of arrows at which no slice begins, as separate points in time.
    fn arrows(&mut self, arrows: &Arrows) -> io::Result<()> {
        for (at, end) in &arrows.unbound {
            let flow = &self.part.trace.flows[*at];
            let track = self.tracks.lane(flow.track.0 as usize, 0);
            self.packets.event(
                self.part.time(flow.time),
                &mut self.interned,
                |out, interned| {
                    unsigned(out, event::TYPE, event::INSTANT);
                    unsigned(out, event::TRACK, track);
                    unsigned(out, event::CATEGORY_IID, interned.category(flow.category));
                    end.push(out);
                },
            )?;
        }
        self.written.flows += self.part.trace.flows.len() as u64;
        Ok(())
    }

    fn instants(&mut self) -> io::Result<()> {
        let part = self.part;
        for instant in &part.trace.instants {
            let track = self.tracks.lane(instant.track.0 as usize, 0);
            self.packets.event(part.time(instant.time), &mut self.interned, |out, interned| {
                unsigned(out, event::TYPE, event::INSTANT);
                unsigned(out, event::TRACK, track);
                unsigned(out, event::CATEGORY_IID, interned.category(instant.category));
                unsigned(out, event::NAME_IID, interned.name(instant.name));
            })?;
        }
        for allocation in &part.trace.allocations {
            let track = self.tracks.lane(allocation.track.0 as usize, 0);
            self.packets.event(
                part.time(allocation.time),
                &mut self.interned,
                |out, interned| {
                    unsigned(out, event::TYPE, event::INSTANT);
                    unsigned(out, event::TRACK, track);
                    text(out, event::NAME, "[memory]");
                    argument::visit_allocation(part, allocation, &mut |key,
                                                                       value: ArgumentValue<
                        '_,
                    >| {
                        annotation::push(out, interned, key, value);
                    });
                },
            )?;
        }
        self.written.instants += (part.trace.instants.len() + part.trace.allocations.len()) as u64;
        Ok(())
    }

    fn counters(&mut self, numbers: &mut Numbers) -> io::Result<()> {
        let part = self.part;
        // Perfetto needs one track per counter series, which is described before its first sample.
        let mut counter_tracks = BTreeMap::new();
        for counter in &part.trace.counters {
            let process = self.tracks.process(counter.track.0 as usize);
            let track = match counter_tracks.get(&(process, counter.name, counter.series)) {
                Some(track) => *track,
                None => {
                    let text = |id| part.trace.strings.get(id);
                    let name = format!("{} {}", text(counter.name), text(counter.series));
                    let name = name.trim_end();
                    let track =
                        track::write_counter(self.packets, numbers, Some(process), name, "")?;
                    mark::counter(self.packets, part.trace, counter, track)?;
                    counter_tracks.insert((process, counter.name, counter.series), track);
                    track
                }
            };
            self.sample(track, counter.time, counter.value)?;
        }
        self.written.counters += part.trace.counters.len() as u64;
        Ok(())
    }

    /// Writes the counters that an analysis computed, which are not in the trace.
    fn computed(&mut self, options: &Options, numbers: &mut Numbers) -> io::Result<()> {
        let rank = self.part.trace.rank;
        for counter in options.counters.iter().filter(|counter| counter.rank == rank) {
            let (name, unit) = (counter.name.as_str(), counter.unit.as_str());
            let track = track::write_counter(self.packets, numbers, self.tracks.first, name, unit)?;
            for (time, value) in &counter.samples {
                self.sample(track, *time, *value)?;
            }
            self.written.counters += counter.samples.len() as u64;
        }
        Ok(())
    }

    fn sample(&mut self, track: u64, time: i64, value: f64) -> io::Result<()> {
        self.packets.event(self.part.time(time), &mut self.interned, |out, _| {
            unsigned(out, event::TYPE, event::COUNTER);
            unsigned(out, event::TRACK, track);
            double(out, event::COUNTER_VALUE, value);
        })
    }
}
