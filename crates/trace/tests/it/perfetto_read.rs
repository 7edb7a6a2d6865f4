//! Reads rowmill's TrackEvent files back. The result must be the source trace or a clear error.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::{ProptestConfig, any, prop, proptest};
use serde_json::json;
use trace::export::{self, Overlaps};
use trace::merge::{self, Merged, Offsets};
use trace::open::{self, ReadRequest};
use trace::store::{Counter, Covered, CutRecording, Ending, FlowPhase, Job, NewSlice, Trace};

use crate::export::{FILES, check_header, check_marks, check_slices, fixture, options};

/// Traces of newer profilers, of other vendors, and with CUDA graphs.
const MODERN: [&str; 4] = [
    "modern/h100_timesformer.json.gz",
    "modern/mi300_owlv2.json.gz",
    "modern/resnet50_2021_workers0.json.gz",
    "modern/sglang_decode.json.gz",
];

fn request(path: PathBuf) -> ReadRequest {
    ReadRequest { paths: vec![path], threads: 2 }
}

/// Writes a file from these parts and reads it. Returns the job and the temporary folder.
fn read_back(merged: &Merged<'_>) -> (Job, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pftrace");
    export::write(&path, merged, &options(Overlaps::Lanes)).unwrap();
    (open::read(&request(path)).unwrap(), folder)
}

/// The ends of an arrow, each as whether it is the last end, its track, and its time.
type Ends = Vec<(bool, u32, i64)>;

/// Returns the arrows by category, with the tracks that they connect. The result does not depend on
/// ids.
fn arrows(trace: &Trace) -> BTreeMap<String, Vec<Ends>> {
    let mut ends: BTreeMap<(String, u64), Ends> = BTreeMap::new();
    for flow in &trace.flows {
        let category = trace.categories[usize::from(flow.category)].name.clone();
        let end = (flow.phase == FlowPhase::End, flow.track.0, flow.time);
        ends.entry((category, flow.id)).or_default().push(end);
    }
    let mut all: BTreeMap<String, Vec<Ends>> = BTreeMap::new();
    for ((category, _), mut ends) in ends {
        ends.sort_unstable();
        all.entry(category).or_default().push(ends);
    }
    all.values_mut().for_each(|arrows| arrows.sort());
    all
}

#[test]
fn perfetto_files_restore_every_trace() {
    for name in FILES.iter().chain(&MODERN) {
        let Some(job) = fixture(name) else { return };
        for trace in &job.traces {
            let (again, _folder) = read_back(&merge::alone(trace));
            let again = &again.traces[0];
            check_slices(trace, again);
            check_marks(trace, again);
            assert_eq!(trace.tracks, again.tracks, "{name}");
            assert!(arrows(trace) == arrows(again), "{name}: arrows differ");
            assert_eq!((trace.rank, &trace.phases), (again.rank, &again.phases), "{name}");
            assert_eq!(trace.header.base_time_ns, again.header.base_time_ns, "{name}");
            if trace.header.distributed.is_some() {
                check_header(trace, again);
            }
            assert!(again.cut.is_none() && again.losses.is_empty(), "{name}");
            // For some of the slices, arguments that no column stores must be equal too.
            let rows: Vec<u32> = trace.rows().step_by(1 + trace.slices.len() / 50).collect();
            let arguments = |trace| open::arguments(trace, &rows).unwrap();
            assert_eq!(arguments(trace), arguments(again), "{name}");
        }
    }
}

#[test]
fn merged_file_restores_the_clock_of_each_rank() {
    let Some(job) = fixture("dlrm8") else { return };
    let offsets =
        Offsets { ahead_ns: (0..8).map(|rank| (rank, i64::from(rank) * 1_000)).collect() };
    let (again, _folder) = read_back(&merge::merge(&job, &offsets));
    assert_eq!(again.traces.len(), 8);
    for (trace, again) in job.traces.iter().zip(&again.traces) {
        assert_eq!((trace.rank, &trace.tracks), (again.rank, &again.tracks));
        assert_eq!(trace.slices.start, again.slices.start);
        assert_eq!(trace.slices.duration, again.slices.duration);
        let places = |trace: &Trace| trace.rows().map(|row| trace.device(row)).collect::<Vec<_>>();
        assert_eq!(places(trace), places(again));
        assert!(again.losses.is_empty(), "{:?}", again.losses);
    }
}

#[test]
fn truncated_recording_stays_marked() {
    let mut trace = small();
    let covered = Some(Covered::Until(2_500));
    let (ending, span) = (Ending::WithinEvents, None);
    trace.cut =
        Some(CutRecording { ending, byte: 77, why: "the disk was full".to_owned(), covered, span });
    let offsets = Offsets { ahead_ns: BTreeMap::from([(0, 40)]) };
    let job = Job { traces: vec![trace.clone()] };
    let (again, folder) = read_back(&merge::merge(&job, &offsets));
    let cut = again.traces[0].cut.as_ref().unwrap();
    assert_eq!((cut.covered, cut.byte, cut.why.as_str()), (covered, 77, "the disk was full"));
    assert_eq!(again.traces[0].instants.len(), trace.instants.len());
    // The file also tells viewers that the recording was truncated.
    let bytes = std::fs::read(folder.path().join("a.pftrace")).unwrap();
    let shown = "recording cut: events before this are complete (the disk was full)";
    assert!(bytes.windows(shown.len()).any(|part| part == shown.as_bytes()));
}

/// Creates a trace with slices before and after 1970, a counter and a header key.
fn small() -> Trace {
    let mut trace = Trace::default();
    for (at, span) in [(-5, 20), (0, 10), (5, 15), (15, 15), (1_000, 3_000)].iter().enumerate() {
        let mut kernel = NewSlice::new("kernel", "k", (0, 7), *span);
        kernel.correlation = Some(at as u64 + 1);
        trace.push(&kernel);
        trace.push(&NewSlice::new("cpu_op", "aten::mm \"ü\"", (12, -3), *span));
    }
    let (name, series) = (trace.strings.intern("power"), trace.strings.intern("W"));
    let track = trace.slices.track[0];
    trace.counters.push(Counter { name, series, track, time: 7, value: 0.1 });
    trace.header.rest.insert("traceName".to_owned(), json!("x"));
    trace
}

#[test]
fn times_before_1970_and_counters_are_restored() {
    let trace = small();
    let (again, _folder) = read_back(&merge::alone(&trace));
    check_slices(&trace, &again.traces[0]);
    check_marks(&trace, &again.traces[0]);
    assert_eq!(again.traces[0].header.rest["traceName"], "x");
    let (empty, _folder) = read_back(&merge::alone(&Trace::default()));
    assert!(empty.traces[0].slices.is_empty());
}

/// Returns the small trace as an encoded file.
fn bytes() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pftrace");
    export::write(&path, &merge::alone(&small()), &options(Overlaps::Lanes)).unwrap();
    std::fs::read(path).unwrap()
}

/// Reads the bytes as a file. An error is returned as the text of its message.
fn read(bytes: &[u8]) -> Result<Job, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pftrace");
    std::fs::write(&path, bytes).unwrap();
    open::read(&request(path)).map_err(|error| error.to_string())
}

#[test]
fn truncated_file_is_rejected_at_any_length() {
    let whole = bytes();
    assert!(read(&whole).is_ok());
    for end in 1..whole.len() {
        let problem = read(&whole[..end]).unwrap_err();
        assert!(problem.contains("expected a trace, got"), "{end}: {problem}");
    }
    let problem = read(&whole[..whole.len() - 1]).unwrap_err();
    assert!(problem.contains("damaged Perfetto trace: byte "), "{problem}");
}

#[test]
fn error_names_foreign_writers() {
    // A packet with a time and a sequence is followed by another packet, as other programs write.
    let foreign = [10, 4, 64, 1, 80, 1, 10, 2, 80, 1];
    let problem = read(&foreign).unwrap_err();
    let expected = "got a Perfetto trace that another program, or an earlier rowmill, wrote";
    assert!(problem.ends_with(expected), "{problem}");
    // A text is not a packet, even if its first byte is that of a packet.
    let text = b"\n{\"traceEvents\": [{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":1,\"ts\":1,\"dur\":1}]}";
    assert_eq!(read(text).unwrap().traces[0].slices.len(), 1);
}

#[test]
fn perfetto_files_in_folders_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.pftrace"), bytes()).unwrap();
    std::fs::write(folder.path().join("b.json"), bytes()).unwrap();
    let problem = open::read(&request(folder.path().to_path_buf())).unwrap_err().to_string();
    assert!(problem.contains("found none"), "{problem}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut damaged = bytes();
        let place = at.index(damaged.len());
        damaged[place] = byte;
        // A changed number or letter may give another valid trace. Other damage must be an error.
        if let Ok(job) = read(&damaged) {
            assert_eq!(job.traces.len(), 1);
        }
    }
}
