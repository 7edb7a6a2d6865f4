//! Reads the packets of one rank into its trace.

use std::collections::HashMap;

use super::annotation::{self, each_interned, text};
use super::argument::{self, PacketArguments};
use super::order;
use super::wire::{self, Broken, Field};
use crate::format::kineto::mark;
use crate::format::kineto::read::header;
use crate::format::kineto::read::key::Argument;
use crate::format::perfetto::field::{arrows, event, interned, line, own, part as fields, sampled};
use crate::format::perfetto::wire::unzigzag;
use crate::store::{
    Allocation, Counter, Covered, Flow, FlowPhase, Instant, NewSlice, StringId, Trace, Track,
    TrackId, TrackKey,
};

/// Limit of times in nanoseconds. Larger times are rejected, because their differences could
/// overflow. Kineto's reader has the same limit.
const TIME_MAX: i64 = 1 << 61;
/// Limit of the indices of tracks. A larger index is treated as damage.
const PLACES_MAX: u64 = 1 << 20;

/// Reads the packets of one rank.
pub struct PartReader<'a> {
    trace: Trace,
    /// Nanoseconds that must be added to all times in the file.
    moved: i64,
    /// Number that the writer added to device ordinals.
    first_device: i64,
    stated: Counts,
    /// Row numbers in the order in which slices were written.
    order: Vec<u32>,
    /// Pairs of the id of a category's first arrow and the category.
    arrows: Vec<(u64, u8)>,
    names: HashMap<u64, StringId>,
    categories: HashMap<u64, u8>,
    keys: HashMap<u64, Argument>,
    /// For each Perfetto track id, the track and its open slices.
    lines: HashMap<u64, (TrackId, Vec<u32>)>,
    sampled: HashMap<u64, (TrackId, StringId, StringId)>,
    event: TrackEvent<'a>,
}

/// The event counts that the writer stated.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    slices: u64,
    flows: u64,
    counters: u64,
    instants: u64,
    allocations: u64,
}

/// The decoded fields of an event.
#[derive(Debug, Default)]
struct TrackEvent<'a> {
    kind: u64,
    track: u64,
    category: u64,
    name: u64,
    text: &'a [u8],
    value: f64,
    arrows: Vec<(u64, FlowPhase)>,
    annotations: Vec<&'a [u8]>,
}

impl<'a> PartReader<'a> {
    /// Creates a reader from the field of rowmill that precedes the part.
    pub fn new(content: &'a [u8], moved: i64) -> Result<Self, Broken> {
        let mut part = Self {
            trace: Trace::default(),
            moved,
            first_device: 0,
            stated: Counts::default(),
            order: Vec::new(),
            arrows: Vec::new(),
            names: HashMap::new(),
            categories: HashMap::new(),
            keys: HashMap::new(),
            lines: HashMap::new(),
            sampled: HashMap::new(),
            event: TrackEvent::default(),
        };
        let mut ahead = 0;
        wire::each(content, |field, value| {
            match (field, value) {
                (fields::RANK, Field::Number(rank)) => {
                    let rank = u32::try_from(rank);
                    part.trace.rank = rank.map_err(|_| Broken::new("a rank above 2^32"))?;
                }
                (fields::AHEAD, Field::Number(value)) => ahead = unzigzag(value),
                (fields::FIRST_DEVICE, Field::Number(value)) => part.first_device = unzigzag(value),
                (fields::HEADER, Field::Bytes(json)) => part.header(json)?,
                (fields::PHASES, Field::Bytes(json)) => part.trace.phases = parsed(json)?,
                (fields::ARROWS, Field::Bytes(content)) => part.arrow_category(content)?,
                (fields::SLICE_COUNT, Field::Number(count)) => part.stated.slices = count,
                (fields::FLOW_COUNT, Field::Number(count)) => part.stated.flows = count,
                (fields::COUNTER_COUNT, Field::Number(count)) => part.stated.counters = count,
                (fields::INSTANT_COUNT, Field::Number(count)) => part.stated.instants = count,
                (fields::ALLOCATION_COUNT, Field::Number(count)) => part.stated.allocations = count,
                _ => {}
            }
            Ok(())
        })?;
        part.moved = part.moved.saturating_add(ahead);
        if let Some(cut) = &mut part.trace.cut
            && let Some(Covered::Until(end)) = &mut cut.covered
        {
            *end = end.saturating_add(ahead);
        }
        Ok(part)
    }

    fn header(&mut self, json: &[u8]) -> Result<(), Broken> {
        let entries = parsed(json)?;
        self.trace.header = header::from_entries(entries, &mut self.trace.losses);
        self.trace.cut = mark::read(&self.trace.header);
        Ok(())
    }

    fn arrow_category(&mut self, content: &[u8]) -> Result<(), Broken> {
        let mut first = 0;
        let mut name = "";
        wire::each(content, |field, value| {
            match (field, value) {
                (arrows::FIRST, Field::Number(number)) => first = number,
                (arrows::CATEGORY, Field::Bytes(bytes)) => name = text(bytes)?,
                _ => {}
            }
            Ok(())
        })?;
        let category = self.trace.category(name);
        self.arrows.push((first, category));
        Ok(())
    }

    /// Reads one of rowmill's own fields that belong to the part.
    pub fn own(&mut self, content: &[u8]) -> Result<(), Broken> {
        wire::each(content, |field, value| match (field, value) {
            (own::TRACK, Field::Bytes(content)) => self.line(content),
            (own::COUNTER, Field::Bytes(content)) => self.counter(content),
            (own::ORDER, Field::Bytes(packed)) => {
                self.order = order::unpacked(packed)?;
                Ok(())
            }
            _ => Ok(()),
        })
    }

    fn line(&mut self, content: &[u8]) -> Result<(), Broken> {
        let (mut uuid, mut place) = (0, 0);
        let mut described =
            Track::new(TrackKey::Text(String::new()), TrackKey::Text(String::new()));
        let mut is_first = false;
        wire::each(content, |field, value| {
            let number = |value| TrackKey::Number(unzigzag(value));
            let owned = |bytes| text(bytes).map(str::to_owned);
            match (field, value) {
                (line::UUID, Field::Number(number)) => uuid = number,
                (line::PLACE, Field::Number(number)) => place = number,
                (line::PID, Field::Number(pid)) => described.pid = number(pid),
                (line::PID_TEXT, Field::Bytes(pid)) => described.pid = TrackKey::Text(owned(pid)?),
                (line::TID, Field::Number(tid)) => described.tid = number(tid),
                (line::TID_TEXT, Field::Bytes(tid)) => described.tid = TrackKey::Text(owned(tid)?),
                (line::PROCESS_NAME, Field::Bytes(name)) => described.process_name = owned(name)?,
                (line::PROCESS_LABEL, Field::Bytes(label)) => {
                    described.process_label = owned(label)?;
                }
                (line::THREAD_NAME, Field::Bytes(name)) => {
                    described.thread_name = owned(name)?;
                    is_first = true;
                }
                _ => {}
            }
            Ok(())
        })?;
        if place >= PLACES_MAX {
            return Err(Broken::new(format!("track {place}")));
        }
        let tracks = &mut self.trace.tracks;
        if tracks.len() as u64 <= place {
            let empty = || Track::new(TrackKey::Text(String::new()), TrackKey::Text(String::new()));
            tracks.resize_with(place as usize + 1, empty);
        }
        if is_first {
            tracks[place as usize] = described;
        }
        self.lines.insert(uuid, (TrackId(place as u32), Vec::new()));
        Ok(())
    }

    fn counter(&mut self, content: &[u8]) -> Result<(), Broken> {
        let (mut uuid, mut place) = (0, 0);
        let (mut name, mut series) = (StringId::default(), StringId::default());
        let strings = &mut self.trace.strings;
        wire::each(content, |field, value| {
            match (field, value) {
                (sampled::UUID, Field::Number(number)) => uuid = number,
                (sampled::PLACE, Field::Number(number)) => place = number,
                (sampled::NAME, Field::Bytes(bytes)) => name = strings.intern(text(bytes)?),
                (sampled::SERIES, Field::Bytes(bytes)) => series = strings.intern(text(bytes)?),
                _ => {}
            }
            Ok(())
        })?;
        if place >= self.trace.tracks.len() as u64 {
            return Err(Broken::new(format!("a counter of unknown track {place}")));
        }
        self.sampled.insert(uuid, (TrackId(place as u32), name, series));
        Ok(())
    }

    /// Stores the texts that a packet interns.
    pub fn learn(&mut self, content: &[u8]) -> Result<(), Broken> {
        let Self { trace, names, categories, keys, .. } = self;
        each_interned(content, |kind, iid, name| match kind {
            interned::EVENT_NAME => {
                names.insert(iid, trace.strings.intern(name));
            }
            interned::CATEGORY => {
                categories.insert(iid, trace.category(name));
            }
            interned::ANNOTATION_NAME => {
                keys.extend(argument::find_argument(name).map(|key| (iid, key)));
            }
            _ => {}
        })
    }

    /// Reads an event in the packet at offset `at`.
    pub fn event(&mut self, time: u64, content: &'a [u8], at: u64) -> Result<(), Broken> {
        self.event.fill(content)?;
        let time = i64::try_from(time).ok().and_then(|time| time.checked_add(self.moved));
        let time = time.filter(|time| time.unsigned_abs() < TIME_MAX.unsigned_abs());
        let time = time.ok_or_else(|| Broken::new("a time of 2^61 ns or more"))?;
        match self.event.kind {
            event::BEGIN => self.begin(time, at),
            event::END => self.end(time),
            event::INSTANT => self.instant(time),
            event::COUNTER => {
                // Counters that an analysis computed have no field of rowmill. Computed counters
                // are dropped, because they can be computed again.
                if let Some(&(track, name, series)) = self.sampled.get(&self.event.track) {
                    let value = self.event.value;
                    self.trace.counters.push(Counter { name, series, track, time, value });
                }
                Ok(())
            }
            other => Err(Broken::new(format!("an event of type {other}"))),
        }
    }

    fn begin(&mut self, time: i64, at: u64) -> Result<(), Broken> {
        let (name, category) = (self.name()?, self.category()?);
        let arguments = self.found()?;
        let row = self.trace.slices.len() as u32;
        let (track, open) = self.lines.get_mut(&self.event.track).ok_or_else(stray)?;
        open.push(row);
        let track = *track;
        let device = arguments.small(Argument::Device);
        let device = device.map(|device| self.unshifted(device));
        let external = arguments.unsigned(Argument::ExternalId);
        let slice = NewSlice {
            correlation: arguments.unsigned(Argument::Correlation),
            external_id: external.or_else(|| arguments.unsigned(Argument::ExternalIdOf2021)),
            stream: arguments.small(Argument::Stream),
            device,
            offset: Some(at),
            ..NewSlice::new("", "", (0, 0), (time, time))
        };
        let Trace { slices, strings, .. } = &mut self.trace;
        slices.push(category, name, track, &slice);
        argument::push(slices, strings, &arguments);
        self.bound(time, track);
        Ok(())
    }

    fn end(&mut self, time: i64) -> Result<(), Broken> {
        let (_, open) = self.lines.get_mut(&self.event.track).ok_or_else(stray)?;
        // Slices nest on a track, so an end always closes the slice that was opened last.
        let row = open.pop().ok_or_else(|| Broken::new("an end without an open slice"))?;
        let duration = time - self.trace.slices.start(row);
        if duration < 0 {
            return Err(Broken::new("a slice that ends before it begins"));
        }
        self.trace.slices.duration[row as usize] = duration;
        Ok(())
    }

    fn instant(&mut self, time: i64) -> Result<(), Broken> {
        // The event by which viewers show a truncation is on a track without a field of rowmill.
        let Some(&(track, _)) = self.lines.get(&self.event.track) else { return Ok(()) };
        if !self.event.text.is_empty() {
            let arguments = self.found()?;
            let allocation = self.allocation(&arguments, time, track);
            self.trace.allocations.push(allocation);
        } else if self.event.name == 0 {
            self.bound(time, track);
        } else {
            let (name, category) = (self.name()?, self.category()?);
            self.trace.instants.push(Instant { name, category, track, time });
        }
        Ok(())
    }

    fn allocation(&self, found: &PacketArguments<'_>, time: i64, track: TrackId) -> Allocation {
        let number = |argument| found.signed(argument).unwrap_or_default();
        let device_type = found.small(Argument::DeviceType).unwrap_or_default();
        let device = found.small(Argument::DeviceId).unwrap_or_default();
        Allocation {
            time,
            address: found.unsigned(Argument::Address).unwrap_or_default(),
            bytes: number(Argument::AllocationBytes),
            total_allocated: number(Argument::TotalAllocated),
            total_reserved: number(Argument::TotalReserved),
            device_type,
            device: if device_type == 0 { device } else { self.unshifted(device) },
            track,
        }
    }

    /// Appends the ends of arrows that are bound to an event.
    fn bound(&mut self, time: i64, track: TrackId) {
        for (id, phase) in self.event.arrows.drain(..) {
            let behind = self.arrows.partition_point(|(first, _)| *first <= id);
            let category = behind.checked_sub(1).map(|at| self.arrows[at].1);
            let category = category.unwrap_or_else(|| self.trace.category(""));
            self.trace.flows.push(Flow { phase, category, id, track, time });
        }
    }

    /// Converts a device ordinal in the file back to the rank's own ordinal.
    fn unshifted(&self, device: i32) -> i32 {
        let own = i64::from(device).saturating_sub(self.first_device);
        if device < 0 { device } else { i32::try_from(own).unwrap_or(device) }
    }

    fn name(&self) -> Result<StringId, Broken> {
        let name = self.names.get(&self.event.name).copied();
        name.ok_or_else(|| Broken::new(format!("name {} before its definition", self.event.name)))
    }

    fn category(&self) -> Result<u8, Broken> {
        let iid = self.event.category;
        let category = self.categories.get(&iid).copied();
        category.ok_or_else(|| Broken::new(format!("category {iid} before its definition")))
    }

    fn found(&mut self) -> Result<PacketArguments<'a>, Broken> {
        let mut arguments = PacketArguments::new();
        for content in self.event.annotations.drain(..) {
            let (key, value) = annotation::pair(content)?;
            if let Some(argument) = self.keys.get(&key) {
                arguments.set(*argument, value);
            }
        }
        Ok(arguments)
    }

    /// Returns the trace if it is complete, or else a description of the missing part.
    pub fn finish(self, is_one_of_several: bool) -> Result<Trace, String> {
        let mut trace = self.trace;
        let rank = trace.rank;
        let got = Counts {
            slices: trace.slices.len() as u64,
            flows: trace.flows.len() as u64,
            counters: trace.counters.len() as u64,
            instants: trace.instants.len() as u64,
            allocations: trace.allocations.len() as u64,
        };
        // A file may be truncated between two packets, which only the stated counts reveal.
        if got != self.stated || self.lines.values().any(|(_, open)| !open.is_empty()) {
            let stated = self.stated.slices;
            return Err(format!("rank {rank}: expected {stated} slices, got {}", got.slices));
        }
        let places = order::places(&self.order, trace.slices.len());
        let places =
            places.ok_or_else(|| format!("rank {rank}: expected an order of all its rows"))?;
        trace.slices.reorder(&places);
        order::renumber_texts(&mut trace);
        trace.separate_mtia_events(0);
        trace.split_stacks();
        // A rank that came from the source file's name or position is not in the file, so it cannot
        // be restored.
        if is_one_of_several || rank > 0 || trace.header.distributed.is_some() {
            trace.header.distributed.get_or_insert_default().rank = Some(rank);
        }
        Ok(trace)
    }
}

impl<'a> TrackEvent<'a> {
    fn fill(&mut self, content: &'a [u8]) -> Result<(), Broken> {
        (self.kind, self.track, self.category, self.name) = (0, 0, 0, 0);
        (self.text, self.value) = (&[], 0.0);
        self.arrows.clear();
        self.annotations.clear();
        wire::each(content, |field, value| {
            match (field, value) {
                (event::TYPE, Field::Number(kind)) => self.kind = kind,
                (event::TRACK, Field::Number(track)) => self.track = track,
                (event::CATEGORY_IID, Field::Number(category)) => self.category = category,
                (event::NAME_IID, Field::Number(name)) => self.name = name,
                (event::NAME, Field::Bytes(text)) => self.text = text,
                (event::COUNTER_VALUE, Field::Number(bits)) => self.value = f64::from_bits(bits),
                (event::FLOW, Field::Number(id)) => self.arrows.push((id, FlowPhase::Start)),
                (event::FLOW_END, Field::Number(id)) => self.arrows.push((id, FlowPhase::End)),
                (event::ANNOTATION, Field::Bytes(content)) => self.annotations.push(content),
                _ => {}
            }
            Ok(())
        })
    }
}

fn stray() -> Broken {
    Broken::new("an event on a track that is not described")
}

fn parsed<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(json).map_err(|error| Broken::new(format!("invalid JSON ({error})")))
}
