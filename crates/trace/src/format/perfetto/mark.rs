//! Writes extra fields from which [`super::read`] restores the source trace: track ids, row order
//! and header. This module also writes the event by which viewers show that a recording was
//! truncated.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::arrow::Arrows;
use super::field::{arrows, event, line, own, part as fields, sampled, track};
use super::packet::{Interned, Packets};
use super::track::{Numbers, Tracks};
use super::wire::{bytes, message, push_varint, sint64, text, unsigned, zigzag};
use crate::format::kineto::export::header;
use crate::format::kineto::mark;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::{Counter, Covered, Trace, TrackKey};

/// Writes the rank, the header and the event counts of a part.
pub fn part<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    part: &MergedPart<'_>,
    found: &Arrows,
) -> io::Result<()> {
    let trace = part.trace;
    packets.own(|out| {
        message(out, own::PART, |out| {
            unsigned(out, fields::RANK, u64::from(trace.rank));
            sint64(out, fields::AHEAD, part.ahead_ns);
            sint64(out, fields::FIRST_DEVICE, part.device(0));
            text(out, fields::HEADER, &Value::Object(head(part)).to_string());
            for (category, first) in &found.categories {
                message(out, fields::ARROWS, |out| {
                    unsigned(out, arrows::FIRST, *first);
                    let name = &trace.categories[usize::from(*category)].name;
                    text(out, arrows::CATEGORY, name);
                });
            }
            unsigned(out, fields::SLICE_COUNT, trace.slices.len() as u64);
            unsigned(out, fields::FLOW_COUNT, trace.flows.len() as u64);
            unsigned(out, fields::COUNTER_COUNT, trace.counters.len() as u64);
            unsigned(out, fields::INSTANT_COUNT, trace.instants.len() as u64);
            unsigned(out, fields::ALLOCATION_COUNT, trace.allocations.len() as u64);
            text(out, fields::PHASES, &json!(trace.phases).to_string());
        });
    })
}

/// Returns the header of a part, as a Kineto file would contain it.
fn head(part: &MergedPart<'_>) -> Map<String, Value> {
    let (mut keys, _) = header::single_header(part);
    if part.trace.header.base_time_ns != 0 {
        keys.insert("baseTimeNanoseconds".to_owned(), json!(part.trace.header.base_time_ns));
    }
    if let Some(cut) = mark::marks(std::slice::from_ref(part)) {
        keys.insert(mark::KEY.to_owned(), cut);
    }
    keys
}

/// Writes the ids and names of tracks, and the Perfetto ids assigned to them.
pub fn tracks<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    part: &MergedPart<'_>,
    tracks: &Tracks,
) -> io::Result<()> {
    for (place, known) in part.trace.tracks.iter().enumerate() {
        for (lane, uuid) in tracks.lanes(place).iter().enumerate() {
            packets.own(|out| {
                message(out, own::TRACK, |out| {
                    unsigned(out, line::UUID, *uuid);
                    unsigned(out, line::PLACE, place as u64);
                    // All lanes of a track have the same ids and names, so only lane 0 states them.
                    if lane > 0 {
                        return;
                    }
                    key(out, &known.pid, line::PID, line::PID_TEXT);
                    key(out, &known.tid, line::TID, line::TID_TEXT);
                    text(out, line::PROCESS_NAME, &known.process_name);
                    text(out, line::PROCESS_LABEL, &known.process_label);
                    text(out, line::THREAD_NAME, &known.thread_name);
                });
            })?;
        }
    }
    Ok(())
}

fn key(out: &mut Vec<u8>, key: &TrackKey, number_field: u32, text_field: u32) {
    match key {
        TrackKey::Number(value) => sint64(out, number_field, *value),
        TrackKey::Text(value) => text(out, text_field, value),
    }
}

/// Writes the row numbers of slices in the order in which the slices are written.
pub fn order<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    trace: &Trace,
    lanes: &SliceLanes,
) -> io::Result<()> {
    // The rows of a track have similar numbers, so their differences take few bytes.
    let (mut packed, mut before) = (Vec::with_capacity(2 * trace.slices.len()), 0);
    for &row in (0..trace.tracks.len()).flat_map(|track| lanes.rows(track)) {
        push_varint(&mut packed, zigzag(i64::from(row) - before));
        before = i64::from(row);
    }
    packets.own(|out| bytes(out, own::ORDER, &packed))
}

/// Writes the name, series and track of a recorded counter.
pub fn counter<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    trace: &Trace,
    counter: &Counter,
    uuid: u64,
) -> io::Result<()> {
    packets.own(|out| {
        message(out, own::COUNTER, |out| {
            unsigned(out, sampled::UUID, uuid);
            unsigned(out, sampled::PLACE, u64::from(counter.track.0));
            text(out, sampled::NAME, trace.strings.get(counter.name));
            text(out, sampled::SERIES, trace.strings.get(counter.series));
        });
    })
}

/// Marks the end of a truncated recording by a point in time on a separate track.
pub fn cut<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    part: &MergedPart<'_>,
    numbers: &mut Numbers,
    first_time: i64,
) -> io::Result<()> {
    let Some(cut) = &part.trace.cut else { return Ok(()) };
    let (time, what) = match cut.covered {
        Some(Covered::Until(end)) => (part.time(end), "events before this are complete"),
        _ => (first_time, "it is unknown which events are missing"),
    };
    let uuid = numbers.next();
    packets.track(|out| {
        unsigned(out, track::UUID, uuid);
        text(out, track::NAME, &format!("recording of rank {} was cut", part.trace.rank));
    })?;
    packets.event(time, &mut Interned::new(part), |out, _| {
        unsigned(out, event::TYPE, event::INSTANT);
        unsigned(out, event::TRACK, uuid);
        text(out, event::NAME, &format!("recording cut: {what} ({})", cut.why));
    })
}
