//! Tests that a file with the traces of several ranks contains all events, and that ids stay
//! distinct.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use trace::export::{self, Options, Overlaps, WhichArguments};
use trace::merge::{self, Offsets};
use trace::open::{self, ReadRequest};
use trace::store::{EventKind, Job, NewSlice, Trace, TrackKey};

use crate::export::{fixture, options};

fn read(path: &Path) -> Trace {
    let mut job = open::read(&ReadRequest { paths: vec![path.to_path_buf()], threads: 1 }).unwrap();
    job.traces.remove(0)
}

fn merged(job: &Job, options: &Options) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged.json.gz");
    let written = export::write(&path, &merge::merge(job, &Offsets::default()), options).unwrap();
    let slices: usize = job.traces.iter().map(|trace| trace.slices.len()).sum();
    assert_eq!(written.slices, slices as u64);
    assert_eq!(written.slices_typed_only, 0);
    read(&path)
}

/// Checks that the ids of a merged trace correspond one to one to the ids of its parts, and that no
/// two ranks share an id.
fn check_ids(job: &Job, one: &Trace, id: impl Fn(&Trace, u32) -> Option<u64>) {
    let mut owners: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
    let mut row = 0;
    for trace in &job.traces {
        for own in trace.rows() {
            let (before, after) = (id(trace, own), id(one, row));
            assert_eq!(before.is_some(), after.is_some());
            // The id 0 means "no id" and stays 0.
            if let (Some(before), Some(after)) = (before.filter(|id| *id != 0), after) {
                let owner = *owners.entry(after).or_insert((trace.rank, before));
                assert_eq!(owner, (trace.rank, before), "id {after}");
            }
            row += 1;
        }
    }
}

#[test]
fn merged_ranks_keep_distinct_ids() {
    let Some(job) = fixture("dlrm8") else { return };
    let one = merged(&job, &options(Overlaps::Keep));
    let sum = |count: fn(&Trace) -> usize| job.traces.iter().map(count).sum::<usize>();
    assert_eq!(one.slices.len(), sum(|trace| trace.slices.len()));
    assert_eq!(one.flows.len(), sum(|trace| trace.flows.len()));
    assert_eq!(one.counters.len(), sum(|trace| trace.counters.len()));
    assert_eq!(one.instants.len(), sum(|trace| trace.instants.len()));
    check_ids(&job, &one, |trace, row| trace.slices.correlation(row));
    check_ids(&job, &one, |trace, row| trace.slices.external_id(row));
    check_ids(&job, &one, |trace, row| trace.slices.record_function.get(row).copied());
    check_ids(&job, &one, |trace, row| trace.slices.event_index.get(row).copied());
    check_ids(&job, &one, |trace, row| trace.slices.python.get(row).map(|frame| frame.id));
    let mut row = 0;
    let mut pids: BTreeMap<&TrackKey, BTreeSet<u32>> = BTreeMap::new();
    let mut devices: BTreeMap<i32, BTreeSet<u32>> = BTreeMap::new();
    for trace in &job.traces {
        for own in trace.rows() {
            assert_eq!(trace.name(own), one.name(row));
            assert_eq!(trace.slices.start(own), one.slices.start(row));
            assert_eq!(trace.slices.end(own), one.slices.end(row));
            pids.entry(&one.track(row).pid).or_default().insert(trace.rank);
            if one.kind(row) == EventKind::Kernel {
                devices.entry(one.device(row)).or_default().insert(trace.rank);
            }
            row += 1;
        }
    }
    assert!(pids.values().all(|ranks| ranks.len() == 1), "{pids:?}");
    assert!(devices.len() >= 8 && devices.values().all(|ranks| ranks.len() == 1), "{devices:?}");
    let names: BTreeSet<_> =
        one.tracks.iter().map(|track| track.process_name.split(" · ").next().unwrap()).collect();
    assert!((0..8).all(|rank| names.contains(format!("rank {rank}").as_str())), "{names:?}");
}

#[test]
fn clock_offsets_are_applied_exactly() {
    let mut job = Job::default();
    for rank in 0..2 {
        let mut trace = Trace { rank, ..Trace::default() };
        let begin = 1_700_000_000_000_000_000;
        trace.push(&NewSlice::new("cpu_op", "a", (7, 7), (begin, begin + 5_000)));
        job.traces.push(trace);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged.json.zst");
    let offsets = Offsets { ahead_ns: [(1, 123)].into() };
    export::write(&path, &merge::merge(&job, &offsets), &options(Overlaps::Lanes)).unwrap();
    let one = read(&path);
    let starts: Vec<_> =
        one.rows().map(|row| one.slices.start(row) - 1_700_000_000_000_000_000).collect();
    assert_eq!(starts, [0, -123]);
}

#[test]
fn columns_provide_arguments_without_a_source_file() {
    let Some(mut job) = fixture("dlrm8") else { return };
    for trace in &mut job.traces {
        trace.slices.offset.fill(u64::MAX);
        trace.origin = trace::store::TraceOrigin::default();
    }
    let options = Options { arguments: WhichArguments::Typed, ..options(Overlaps::Keep) };
    let one = merged(&job, &options);
    check_ids(&job, &one, |trace, row| trace.slices.correlation(row));
}
