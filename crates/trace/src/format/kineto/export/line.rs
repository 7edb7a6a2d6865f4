//! Formats the lines of the list of events, and caches the texts that many lines share.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::export::argument::ArgumentValue;
use crate::export::layout::{self, ProcessClass};
use crate::format::kineto::number;
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;
use crate::store::{StringId, TrackKey};

/// Number of bytes that are buffered before a write.
const COLLECTED: usize = 1 << 18;

/// Writes events, one per line, through a buffer.
pub struct EventLines<'a, W: ?Sized> {
    out: &'a mut W,
    buffer: Vec<u8>,
    is_empty: bool,
}

impl<'a, W: Write + ?Sized> EventLines<'a, W> {
    /// Creates a writer for a list whose opening bracket was already written.
    pub fn new(out: &'a mut W) -> Self {
        Self { out, buffer: Vec::with_capacity(2 * COLLECTED), is_empty: true }
    }

    /// Starts an event of the given phase. The caller appends the other fields and the closing
    /// brace.
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

/// The escaped texts of a part. Each text is escaped only once.
pub struct EscapedTexts {
    names: Vec<u8>,
    ends: Vec<usize>,
    /// The field of each category, such as `, "cat": "kernel"`, by category id. The empty category
    /// has an empty field.
    pub categories: Vec<Vec<u8>>,
    /// The fields of each lane, such as `, "pid": 0, "tid": 7`, by track and lane.
    tracks: Vec<Vec<Vec<u8>>>,
    tids: Vec<Vec<TrackKey>>,
}

impl EscapedTexts {
    /// Escapes all texts of a part.
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

    /// Returns an interned text, escaped and in quotes.
    pub fn name(&self, id: StringId) -> &[u8] {
        let at = id.0 as usize;
        let first = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[first..self.ends[at]]
    }

    /// Returns the fields of process and thread for a lane of a track.
    pub fn track(&self, track: usize, lane: u32) -> &[u8] {
        &self.tracks[track][lane as usize]
    }

    /// Returns the thread ids of a track's lanes.
    pub fn tids(&self, track: usize) -> &[TrackKey] {
        &self.tids[track]
    }
}

/// Assigns thread ids to the lanes of tracks. The new ids are larger than all ids in their process.
fn tids(part: &MergedPart<'_>, lanes: &SliceLanes) -> Vec<Vec<TrackKey>> {
    let mut largest: BTreeMap<&TrackKey, i64> = BTreeMap::new();
    for track in &part.trace.tracks {
        let largest_tid = largest.entry(&track.pid).or_default();
        *largest_tid = track.tid.number().unwrap_or(0).max(*largest_tid);
    }
    let mut tids = Vec::with_capacity(part.trace.tracks.len());
    for (at, track) in part.trace.tracks.iter().enumerate() {
        let mut of_track = vec![track.tid.clone()];
        for lane in 1..lanes.count[at] {
            // If no larger number exists, the lane gets a text as its thread id.
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

/// Formats the fields of process and thread, as in `, "pid": 0, "tid": 7`.
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

/// Appends a text in quotes, with the escapes that JSON needs.
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

/// Appends a number, or `null` for infinity and NaN, which JSON cannot express.
pub fn push_float(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(serde_json::Value::from(number).to_string().as_bytes());
}

/// Appends the value of an argument as JSON.
pub fn push_value(out: &mut Vec<u8>, value: ArgumentValue<'_>) {
    match value {
        ArgumentValue::Unsigned(value) => number::push_unsigned(out, value),
        ArgumentValue::Signed(value) => number::push_signed(out, value),
        ArgumentValue::Float(value) => push_float(out, value),
        // `f32` prints the fewest decimals that identify the number in single precision.
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
