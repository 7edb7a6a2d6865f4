//! Lines of the list of events, and the texts that many of them share.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::export::argument::ArgumentValue;
use crate::export::layout::{self, ProcessClass};
use crate::format::kineto::number;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::{StringId, TrackKey};

/// Bytes that are collected before they are handed on.
const COLLECTED: usize = 1 << 18;

/// One event a line.
pub struct EventLines<'a, W: ?Sized> {
    out: &'a mut W,
    buffer: Vec<u8>,
    is_empty: bool,
}

impl<'a, W: Write + ?Sized> EventLines<'a, W> {
    /// Lines of a list that was opened.
    pub fn new(out: &'a mut W) -> Self {
        Self { out, buffer: Vec::with_capacity(2 * COLLECTED), is_empty: true }
    }

    /// Begins an event of a phase; the caller appends the rest and closes it.
    pub fn begin(&mut self, phase: &str) -> io::Result<&mut Vec<u8>> {
        if self.buffer.len() >= COLLECTED {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        self.buffer.extend_from_slice(if self.is_empty { b"\n    " } else { b",\n    " });
        self.is_empty = false;
        self.buffer.extend_from_slice(b"{\"ph\": \"");
        self.buffer.extend_from_slice(phase.as_bytes());
        self.buffer.push(b'"');
        Ok(&mut self.buffer)
    }

    /// Closes the list and the object around it.
    pub fn end(mut self) -> io::Result<()> {
        self.buffer.extend_from_slice(b"\n  ]\n}\n");
        self.out.write_all(&self.buffer)
    }
}

/// A part's texts, escaped once.
pub struct EscapedTexts {
    names: Vec<u8>,
    ends: Vec<usize>,
    /// `, "cat": "kernel"` by category; nothing for the empty one.
    pub categories: Vec<Vec<u8>>,
    /// `, "pid": 0, "tid": 7` by track and lane.
    tracks: Vec<Vec<Vec<u8>>>,
    /// Thread ids by track and lane.
    tids: Vec<Vec<TrackKey>>,
}

impl EscapedTexts {
    /// The texts of a part.
    pub fn new(part: &MergedPart<'_>, lanes: &SliceLanes) -> Self {
        let mut names = Vec::new();
        let ends = part.trace.strings.iter().map(|text| {
            push_text(&mut names, text);
            names.len()
        });
        let ends = ends.collect();
        let category = |name: &str| {
            if name.is_empty() {
                return Vec::new();
            }
            let mut text = b", \"cat\": ".to_vec();
            push_text(&mut text, name);
            text
        };
        let categories = part.trace.categories.iter().map(|known| category(&known.name)).collect();
        let tids = tids(part, lanes);
        let tracks = part.trace.tracks.iter().zip(&tids).map(|(track, tids)| {
            tids.iter().map(|tid| place(&part.pid(&track.pid), tid)).collect()
        });
        let tracks = tracks.collect();
        Self { names, ends, categories, tracks, tids }
    }

    /// A text in quotes.
    pub fn name(&self, id: StringId) -> &[u8] {
        let at = id.0 as usize;
        let first = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[first..self.ends[at]]
    }

    /// Process and thread of a track's lane.
    pub fn track(&self, track: usize, lane: u32) -> &[u8] {
        &self.tracks[track][lane as usize]
    }

    /// The thread ids of a track's lanes.
    pub fn tids(&self, track: usize) -> &[TrackKey] {
        &self.tids[track]
    }
}

/// Lanes get thread ids above those of their process.
fn tids(part: &MergedPart<'_>, lanes: &SliceLanes) -> Vec<Vec<TrackKey>> {
    let mut largest: BTreeMap<&TrackKey, i64> = BTreeMap::new();
    for track in &part.trace.tracks {
        let known = largest.entry(&track.pid).or_default();
        *known = track.tid.number().unwrap_or(0).max(*known);
    }
    let mut tids = Vec::with_capacity(part.trace.tracks.len());
    for (at, track) in part.trace.tracks.iter().enumerate() {
        let mut of_track = vec![track.tid.clone()];
        for lane in 1..lanes.count[at] {
            let largest = largest.get_mut(&track.pid).filter(|largest| **largest < i64::MAX);
            let number = largest.filter(|_| track.tid.number().is_some()).map(|largest| {
                *largest += 1;
                TrackKey::Number(*largest)
            });
            let class = if part.is_device(at) { ProcessClass::Device } else { ProcessClass::Host };
            let text =
                || TrackKey::Text(layout::lane_name(&layout::track_name(track, class), lane));
            of_track.push(number.unwrap_or_else(text));
        }
        tids.push(of_track);
    }
    tids
}

/// `, "pid": 0, "tid": 7`
pub fn place(pid: &TrackKey, tid: &TrackKey) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, id) in [(", \"pid\": ", pid), (", \"tid\": ", tid)] {
        text.extend_from_slice(key.as_bytes());
        match id {
            TrackKey::Number(number) => number::push_signed(&mut text, *number),
            TrackKey::Text(id) => push_text(&mut text, id),
        }
    }
    text
}

/// Appends a text in quotes.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: &u8| *byte >= b' ' && *byte != b'"' && *byte != b'\\';
    if text.as_bytes().iter().all(is_plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    let escaped = serde_json::Value::from(text).to_string();
    out.extend_from_slice(escaped.as_bytes());
}

/// Appends a number, or `null` where there is none.
pub fn push_float(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(serde_json::Value::from(number).to_string().as_bytes());
}

/// Appends an argument's value.
pub fn push_value(out: &mut Vec<u8>, value: ArgumentValue<'_>) {
    match value {
        ArgumentValue::Unsigned(value) => number::push_unsigned(out, value),
        ArgumentValue::Signed(value) => number::push_signed(out, value),
        ArgumentValue::Float(value) => push_float(out, value),
        // The shortest decimals of single precision.
        ArgumentValue::Single(value) => out.extend_from_slice(value.to_string().as_bytes()),
        ArgumentValue::Text(value) => push_text(out, value),
        ArgumentValue::Three([x, y, z]) => {
            for (before, value) in [("[", x), (", ", y), (", ", z)] {
                out.extend_from_slice(before.as_bytes());
                number::push_unsigned(out, u64::from(value));
            }
            out.push(b']');
        }
        ArgumentValue::False => out.extend_from_slice(b"false"),
        ArgumentValue::Json(value) => out.extend_from_slice(value.as_bytes()),
    }
}
