//! Writes any trace as Kineto JSON, with one event per line and times as exact decimals.
//!
//! Names, categories and tracks are escaped once and reused in all rows.

pub(in crate::format) mod header;
mod line;
mod time;

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::export::argument::{self, ArgumentValue, ColumnPlaces};
use crate::export::layout::{self, Process};
use crate::export::original::Originals;
use crate::export::{ExportedEvents, Options, Overlaps, WhichArguments, binding};
use crate::lanes::{self, SliceLanes};
use crate::merge::{IdKind, Merged, MergedPart};
use crate::store::{Counter, FlowPhase, TrackKey};
use line::{EscapedTexts, EventLines};
use time::WrittenClock;

use super::number;

/// Writes all parts of a merged trace as one JSON document.
///
/// # Errors
/// Returns the errors of writing to `out`.
pub fn write(
    out: &mut (impl Write + ?Sized),
    merged: &Merged<'_>,
    options: &Options,
) -> io::Result<ExportedEvents> {
    let clock = WrittenClock::new(merged);
    let processes = layout::processes(merged);
    let mut written = ExportedEvents::default();
    header::write(out, merged, clock)?;
    let mut lines = EventLines::new(out);
    for (place, part) in merged.parts.iter().enumerate() {
        let tracks = part.trace.tracks.len();
        let lanes = match options.overlaps {
            Overlaps::Lanes => lanes::assign(&part.trace.slices, tracks),
            Overlaps::Keep => lanes::none(&part.trace.slices, tracks),
        };
        let texts = EscapedTexts::new(part, &lanes);
        let mut rows = ExportRows { lines: &mut lines, clock, part, texts, written: &mut written };
        rows.names(&processes, place)?;
        rows.slices(&lanes, options.arguments)?;
        rows.flows(&lanes)?;
        rows.counters()?;
        rows.instants()?;
        rows.computed(options)?;
    }
    lines.end()?;
    Ok(written)
}

/// Writes the rows of one part of a merged trace.
struct ExportRows<'a, 'w, W: ?Sized> {
    lines: &'a mut EventLines<'w, W>,
    clock: WrittenClock,
    part: &'a MergedPart<'a>,
    texts: EscapedTexts,
    written: &'a mut ExportedEvents,
}

impl<W: Write + ?Sized> ExportRows<'_, '_, W> {
    /// Writes the names and the display order of processes and threads.
    fn names(&mut self, processes: &[Process], part: usize) -> io::Result<()> {
        // In a container, a process may have the same id as a device. Readers merge a process and a
        // device with equal ids, so their name is written once.
        let mut named = BTreeSet::new();
        let own = processes.iter().enumerate().filter(|(_, process)| process.part == part);
        for (order, process) in own {
            if named.insert(&process.pid) {
                self.process_names(process, order)?;
            }
            let mut place = 0;
            for track in &process.tracks {
                self.thread_names(process, *track, &mut place)?;
            }
        }
        Ok(())
    }

    fn process_names(&mut self, process: &Process, order: usize) -> io::Result<()> {
        let at = line::place(&process.pid, &TrackKey::Number(0));
        if !process.name.is_empty() {
            self.metadata(&at, "process_name", "name", ArgumentValue::Text(&process.name))?;
        }
        if !process.label.is_empty() {
            self.metadata(&at, "process_labels", "labels", ArgumentValue::Text(&process.label))?;
        }
        let order = ArgumentValue::Unsigned(order as u64);
        self.metadata(&at, "process_sort_index", "sort_index", order)
    }

    fn thread_names(&mut self, process: &Process, track: usize, place: &mut u64) -> io::Result<()> {
        let trace_track = &self.part.trace.tracks[track];
        let name = layout::track_name(trace_track, process.class);
        let is_named = !trace_track.thread_name.is_empty() || self.part.is_one_of_several();
        for (lane, tid) in (0..).zip(self.texts.tids(track).to_vec()) {
            let at = line::place(&process.pid, &tid);
            if is_named || lane > 0 {
                let name = layout::lane_name(&name, lane);
                self.metadata(&at, "thread_name", "name", ArgumentValue::Text(&name))?;
            }
            self.metadata(&at, "thread_sort_index", "sort_index", ArgumentValue::Unsigned(*place))?;
            *place += 1;
        }
        Ok(())
    }

    fn metadata(
        &mut self,
        at: &[u8],
        name: &str,
        key: &str,
        value: ArgumentValue<'_>,
    ) -> io::Result<()> {
        let first = self.clock.first.unwrap_or(0);
        let out = self.lines.begin("M")?;
        out.extend_from_slice(b", \"name\": ");
        line::push_text(out, name);
        out.extend_from_slice(at);
        push_time(out, self.clock, first);
        push_arguments(out, |out| {
            line::push_text(out, key);
            out.extend_from_slice(b": ");
            line::push_value(out, value);
        });
        out.push(b'}');
        Ok(())
    }

    fn slices(&mut self, lanes: &SliceLanes, arguments: WhichArguments) -> io::Result<()> {
        let part = self.part;
        let mut originals = match arguments {
            WhichArguments::All => Originals::open(part.trace),
            WhichArguments::Typed => Originals::none(part.trace),
        };
        let slices = &part.trace.slices;
        let mut places = ColumnPlaces::default();
        for row in part.trace.rows() {
            let at = row as usize;
            let out = self.lines.begin("X")?;
            out.extend_from_slice(&self.texts.categories[usize::from(slices.category[at])]);
            out.extend_from_slice(b", \"name\": ");
            out.extend_from_slice(self.texts.name(slices.name[at]));
            out.extend_from_slice(self.texts.track(slices.track[at].0 as usize, lanes.lane[at]));
            push_time(out, self.clock, part.time(slices.start[at]));
            out.extend_from_slice(b", \"dur\": ");
            self.clock.push_duration(out, slices.duration[at]);
            // Slices that were never in a file have only columns, so their arguments are complete.
            let mut is_complete =
                slices.offset[at] == u64::MAX || arguments == WhichArguments::Typed;
            push_arguments(out, |out| {
                if let Some(pairs) = originals.arguments(row) {
                    is_complete = true;
                    argument::visit_original(part, &pairs, &mut |key, value| {
                        push_pair(out, key, value);
                    });
                } else {
                    argument::visit_columns(part, row, &mut places, &mut |key, value| {
                        push_pair(out, key, value);
                    });
                }
            });
            out.push(b'}');
            self.written.slices_typed_only += u64::from(!is_complete);
        }
        self.written.slices += slices.len() as u64;
        self.written.slices_moved += lanes.moved();
        Ok(())
    }

    fn flows(&mut self, lanes: &SliceLanes) -> io::Result<()> {
        let part = self.part;
        // Without moved slices every arrow stays in lane 0, so binding them would be wasted work.
        let bound = if lanes.moved() > 0 { binding::bind(part, lanes) } else { Vec::new() };
        for (at, flow) in part.trace.flows.iter().enumerate() {
            let row = bound.get(at).copied().flatten();
            let lane = row.map_or(0, |row| lanes.lane[row as usize]);
            let (phase, binding): (_, &[u8]) = match flow.phase {
                FlowPhase::Start => ("s", b""),
                FlowPhase::Step => ("t", b""),
                FlowPhase::End => ("f", b", \"bp\": \"e\""),
            };
            let out = self.lines.begin(phase)?;
            out.extend_from_slice(b", \"id\": ");
            number::push_unsigned(out, part.id(IdKind::Flow, flow.id));
            let category = usize::from(flow.category);
            out.extend_from_slice(&self.texts.categories[category]);
            out.extend_from_slice(b", \"name\": ");
            line::push_text(out, &part.trace.categories[category].name);
            out.extend_from_slice(self.texts.track(flow.track.0 as usize, lane));
            push_time(out, self.clock, part.time(flow.time));
            out.extend_from_slice(binding);
            out.push(b'}');
        }
        self.written.flows += part.trace.flows.len() as u64;
        Ok(())
    }

    /// Writes the counters. All series of a counter that have the same time become one event.
    fn counters(&mut self) -> io::Result<()> {
        let part = self.part;
        // Adjacent samples with the same series belong to two events at the same time.
        let one = |a: &Counter, b: &Counter| {
            (a.name, a.track, a.time) == (b.name, b.track, b.time) && a.series != b.series
        };
        for event in part.trace.counters.chunk_by(one) {
            let out = self.lines.begin("C")?;
            out.extend_from_slice(b", \"name\": ");
            out.extend_from_slice(self.texts.name(event[0].name));
            out.extend_from_slice(self.texts.track(event[0].track.0 as usize, 0));
            push_time(out, self.clock, part.time(event[0].time));
            push_arguments(out, |out| {
                for counter in event {
                    let series = part.trace.strings.get(counter.series);
                    push_pair(out, series, ArgumentValue::Float(counter.value));
                }
            });
            out.push(b'}');
        }
        self.written.counters += part.trace.counters.len() as u64;
        Ok(())
    }

    fn instants(&mut self) -> io::Result<()> {
        let part = self.part;
        for instant in &part.trace.instants {
            let out = self.lines.begin("i")?;
            out.extend_from_slice(&self.texts.categories[usize::from(instant.category)]);
            out.extend_from_slice(b", \"s\": \"g\", \"name\": ");
            out.extend_from_slice(self.texts.name(instant.name));
            out.extend_from_slice(self.texts.track(instant.track.0 as usize, 0));
            push_time(out, self.clock, part.time(instant.time));
            out.push(b'}');
        }
        for allocation in &part.trace.allocations {
            let out = self.lines.begin("i")?;
            out.extend_from_slice(b", \"cat\": \"cpu_instant_event\", \"s\": \"t\"");
            out.extend_from_slice(b", \"name\": \"[memory]\"");
            out.extend_from_slice(self.texts.track(allocation.track.0 as usize, 0));
            push_time(out, self.clock, part.time(allocation.time));
            push_arguments(out, |out| {
                argument::visit_allocation(part, allocation, &mut |key, value| {
                    push_pair(out, key, value);
                });
            });
            out.push(b'}');
        }
        self.written.instants += (part.trace.instants.len() + part.trace.allocations.len()) as u64;
        Ok(())
    }

    /// Writes the counters that an analysis computed, which are not in the trace.
    fn computed(&mut self, options: &Options) -> io::Result<()> {
        // Computed counters get a process of their own, so that they are not mixed with recorded
        // ones.
        let pid = self.part.pid(&TrackKey::Text("counters".to_owned()));
        let at = line::place(&pid, &TrackKey::Number(0));
        let own = options.counters.iter().filter(|counter| counter.rank == self.part.trace.rank);
        for counter in own {
            let series = if counter.unit.is_empty() { "value" } else { &counter.unit };
            for (time, value) in &counter.samples {
                let out = self.lines.begin("C")?;
                out.extend_from_slice(b", \"name\": ");
                line::push_text(out, &counter.name);
                out.extend_from_slice(&at);
                push_time(out, self.clock, self.part.time(*time));
                push_arguments(out, |out| push_pair(out, series, ArgumentValue::Float(*value)));
                out.push(b'}');
            }
            self.written.counters += counter.samples.len() as u64;
        }
        Ok(())
    }
}

fn push_time(out: &mut Vec<u8>, clock: WrittenClock, time: i64) {
    out.extend_from_slice(b", \"ts\": ");
    clock.push_time(out, time);
}

/// Appends the object `args`, or nothing if the object would be empty.
fn push_arguments(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let before = out.len();
    out.extend_from_slice(b", \"args\": {");
    let empty = out.len();
    fill(out);
    if out.len() == empty {
        out.truncate(before);
    } else {
        out.push(b'}');
    }
}

fn push_pair(out: &mut Vec<u8>, key: &str, value: ArgumentValue<'_>) {
    if out.last() != Some(&b'{') {
        out.extend_from_slice(b", ");
    }
    line::push_text(out, key);
    out.extend_from_slice(b": ");
    line::push_value(out, value);
}
