//! Decodes rowmill's TrackEvent files with a minimal decoder, and checks what Perfetto will
//! display.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use trace::export::{self, Counter, Options, Overlaps, WhichArguments};
use trace::merge::{self, Merged, Offsets};
use trace::store::{NewSlice, Trace};

use crate::export::{FILES, fixture, options};

/// A protobuf field, whose value is a number or bytes.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Field<'_> {
    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(_) => unreachable!("expected a number"),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => unreachable!("expected bytes"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Number(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at_checked(length).unwrap();
                bytes = rest;
                Field::Bytes(value)
            }
            other => unreachable!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn find<'a, 'b>(fields: &'b [(u64, Field<'a>)], number: u64) -> Option<&'b Field<'a>> {
    fields.iter().find(|(other, _)| *other == number).map(|(_, field)| field)
}

/// The decoded content of a file.
#[derive(Default)]
struct Decoded {
    /// Name and parent of each track, by the track's id.
    tracks: BTreeMap<u64, (String, Option<u64>)>,
    /// Time, track, type and name of each event, in Perfetto's sorting order.
    events: Vec<(u64, u64, u64, String)>,
    /// Number of ends of each arrow.
    arrows: BTreeMap<u64, u64>,
    keys: BTreeSet<String>,
}

fn decode(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    let mut names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut cleared = BTreeSet::new();
    for (_, packet) in fields(bytes) {
        let packet = fields(packet.bytes());
        let sequence = find(&packet, 10).unwrap().number();
        if find(&packet, 13).unwrap().number() & 1 == 1 {
            names.retain(|(other, _), _| *other != sequence);
            cleared.insert(sequence);
        }
        assert!(cleared.contains(&sequence));
        for (kind, interned) in find(&packet, 12).iter().flat_map(|data| fields(data.bytes())) {
            let entry = fields(interned.bytes());
            let name = find(&entry, 2).unwrap().text();
            match kind {
                2 => drop(names.insert((sequence, find(&entry, 1).unwrap().number()), name)),
                3 => drop(decoded.keys.insert(name)),
                _ => {}
            }
        }
        if let Some(track) = find(&packet, 60) {
            decoded.add_track(&fields(track.bytes()));
        }
        if let Some(event) = find(&packet, 11) {
            let event = fields(event.bytes());
            let time = find(&packet, 8).unwrap().number();
            let number = |field| find(&event, field).map(Field::number);
            let name = number(10).map(|iid| names[&(sequence, iid)].clone()).unwrap_or_default();
            let (track, kind) = (number(11).unwrap(), number(9).unwrap());
            assert!(decoded.tracks.contains_key(&track), "a track without a description");
            decoded.events.push((time, track, kind, name));
            let ends = event.iter().filter(|(field, _)| *field == 47 || *field == 48);
            ends.for_each(|(_, id)| *decoded.arrows.entry(id.number()).or_default() += 1);
        }
    }
    decoded.events.sort_by_key(|(time, ..)| *time);
    decoded
}

impl Decoded {
    fn add_track(&mut self, track: &[(u64, Field<'_>)]) {
        let nested = |field, name| {
            find(track, field).and_then(|inner| Some(find(&fields(inner.bytes()), name)?.text()))
        };
        let name = find(track, 2).map(Field::text).or(nested(3, 6)).or(nested(4, 5));
        let parent = find(track, 5).map(Field::number);
        let uuid = find(track, 1).unwrap().number();
        let before = self.tracks.insert(uuid, (name.unwrap_or_default(), parent));
        assert_eq!(before, None, "two tracks with number {uuid}");
    }

    /// Returns start, end and name of all slices in order. The test fails unless slices nest on
    /// their tracks.
    fn slices(&self) -> Vec<(i64, i64, String)> {
        let mut open: BTreeMap<u64, Vec<(i64, &str)>> = BTreeMap::new();
        let mut slices = Vec::new();
        for (time, track, kind, name) in &self.events {
            let stack = open.entry(*track).or_default();
            match kind {
                1 => stack.push((*time as i64, name)),
                2 => {
                    let (start, name) = stack.pop().unwrap();
                    slices.push((start, *time as i64, name.to_owned()));
                }
                _ => {}
            }
        }
        assert!(open.values().all(Vec::is_empty), "every begin has an end");
        slices.sort();
        slices
    }
}

fn written(merged: &Merged<'_>, options: &Options) -> Decoded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.pftrace");
    export::write(&path, merged, options).unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "no temporary file is left");
    decode(&std::fs::read(&path).unwrap())
}

fn expected(traces: &[Trace]) -> Vec<(i64, i64, String)> {
    let slice = |trace: &Trace, row| {
        (trace.slices.start(row), trace.slices.end(row), trace.name(row).to_owned())
    };
    let rows = traces.iter().flat_map(|trace| trace.rows().map(move |row| slice(trace, row)));
    let mut slices: Vec<_> = rows.collect();
    slices.sort();
    slices
}

#[test]
fn every_slice_is_written_and_nests() {
    for name in FILES {
        let Some(job) = fixture(name) else { return };
        for trace in &job.traces {
            let decoded = written(&merge::alone(trace), &options(Overlaps::Lanes));
            let one = std::slice::from_ref(trace);
            assert!(decoded.slices() == expected(one), "{name}: slices differ");
            let ends: u64 = decoded.arrows.values().sum();
            assert_eq!(ends, trace.flows.len() as u64, "{name}");
        }
    }
}

#[test]
fn eight_ranks_are_written_to_one_file() {
    let Some(job) = fixture("dlrm8") else { return };
    let decoded = written(&merge::merge(&job, &Offsets::default()), &options(Overlaps::Lanes));
    assert!(decoded.slices() == expected(&job.traces), "slices differ");
    let roots = decoded.tracks.values().filter(|(_, parent)| parent.is_none());
    let ranks: BTreeSet<_> =
        roots.filter_map(|(name, _)| name.split_once(" · ").map(|(rank, _)| rank)).collect();
    assert_eq!(ranks.len(), 8, "{ranks:?}");
    assert!(decoded.keys.contains("Input Dims"), "arguments no column holds: {:?}", decoded.keys);
}

#[test]
fn overlapping_and_touching_slices_are_separated() {
    let mut trace = Trace::default();
    for span in [(10, 20), (0, 10), (5, 15), (15, 15), (15, 15), (0, 10), (20, 30)] {
        trace.push(&NewSlice::new("kernel", "k", (0, 7), span));
    }
    let options = Options {
        arguments: WhichArguments::Typed,
        counters: vec![Counter {
            rank: 0,
            name: "Queue length".to_owned(),
            unit: "kernels".to_owned(),
            samples: vec![(5, 1.0)],
        }],
        overlaps: Overlaps::Lanes,
    };
    let decoded = written(&merge::alone(&trace), &options);
    assert_eq!(decoded.slices(), expected(std::slice::from_ref(&trace)));
    let names: Vec<_> = decoded.tracks.values().map(|(name, _)| name.as_str()).collect();
    let expected = ["", "device 0", "stream 7", "stream 7 (lane 2)", "Queue length"];
    assert_eq!(names, expected);
    assert!(decoded.events.iter().any(|(time, _, kind, _)| (*time, *kind) == (5, 4)));
}

#[test]
fn compressed_files_are_whole() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("kernel", "k", (0, 7), (1, 2)));
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str| {
        let path = folder.path().join(name);
        export::write(&path, &merge::alone(&trace), &options(Overlaps::Lanes)).unwrap();
        std::fs::read(Path::new(&path)).unwrap()
    };
    let plain = put("a.perfetto-trace");
    let mut unpacked = Vec::new();
    let packed = put("a.pftrace.gz");
    let mut decoder = flate2::read::GzDecoder::new(packed.as_slice());
    std::io::Read::read_to_end(&mut decoder, &mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
    assert_eq!(zstd::decode_all(put("a.pftrace.zst").as_slice()).unwrap(), plain);
}
