//! Tests that traces which are written and read again are equal, column by column.

use trace::export::{self, Counter, ExportedEvents, Options, Overlaps, WhichArguments};
use trace::merge;
use trace::open::{self, ReadRequest};
use trace::store::{Flow, FlowPhase, Job, NewSlice, Sparse, Trace, TrackId};

use crate::trace_path;

pub fn options(overlaps: Overlaps) -> Options {
    Options { overlaps, arguments: WhichArguments::All, counters: Vec::new() }
}

/// Reads a job of the fixtures. Returns `None` if the fixture is missing.
pub fn fixture(name: &str) -> Option<Job> {
    let name = if name == "dlrm8" { "dlrm8/dlrm_kineto.tar.gz" } else { name };
    Some(open::read(&ReadRequest { paths: vec![trace_path(name)?], threads: 2 }).unwrap())
}

/// Every Kineto trace among the fixtures.
pub const FILES: [&str; 15] = [
    "alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "dlrm8/dlrm_kineto.tar.gz",
    "linear/linear_kineto.json.gz",
    "nccl/nccl_data.json.gz",
    "odd/backward_thread.json",
    "odd/event_sync_multi_stream.json.gz",
    "odd/event_sync_trace.json.gz",
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "odd/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "odd/rank_non_gpu.json.gz",
    "odd/triton_example.json.gz",
    "simple_add/benchmark_result_493459_1694039959_trace.json.gz",
    "timeline_sampled/sampled_rank-0.json.gz",
    "trace_diff/control.json.gz",
    "trace_diff/test.json.gz",
];

fn rewritten(trace: &Trace, name: &str, options: &Options) -> (Trace, ExportedEvents) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let written = export::write(&path, &merge::alone(trace), options).unwrap();
    let mut job = open::read(&ReadRequest { paths: vec![path], threads: 1 }).unwrap();
    (job.traces.remove(0), written)
}

fn check_column<T: Clone, U: PartialEq + std::fmt::Debug>(
    name: &str,
    (before, after): (&Sparse<T>, &Sparse<T>),
    (seen_before, seen_after): (impl Fn(&T) -> U, impl Fn(&T) -> U),
) {
    assert_eq!(before.len(), after.len(), "{name}");
    for ((row, old), (other, new)) in before.iter().zip(after.iter()) {
        assert_eq!((row, seen_before(old)), (other, seen_after(new)), "{name}");
    }
}

/// Checks that two traces are equal except for the order of categories, tracks and strings.
fn check_same(before: &Trace, after: &Trace) {
    check_slices(before, after);
    check_flows(before, after);
    check_marks(before, after);
    check_header(before, after);
}

/// Checks that the slices of two traces are equal in all columns.
pub fn check_slices(before: &Trace, after: &Trace) {
    assert_eq!(before.slices.len(), after.slices.len());
    assert_eq!(before.slices.start, after.slices.start);
    assert_eq!(before.slices.duration, after.slices.duration);
    for row in before.rows() {
        assert_eq!(before.name(row), after.name(row));
        assert_eq!(category(before, row), category(after, row));
        check_track(
            before,
            after,
            (before.slices.track[row as usize], after.slices.track[row as usize]),
        );
        assert_eq!(before.slices.correlation(row), after.slices.correlation(row), "{row}");
        assert_eq!(before.slices.external_id(row), after.slices.external_id(row), "{row}");
        assert_eq!(before.slices.stream(row), after.slices.stream(row), "{row}");
        assert_eq!(before.slices.device(row), after.slices.device(row), "{row}");
    }
    check_columns(before, after);
}

/// Checks that the headers of two traces are equal.
pub fn check_header(before: &Trace, after: &Trace) {
    assert_eq!(before.header.devices, after.header.devices);
    assert_eq!(before.header.distributed, after.header.distributed);
    let without_unit = |trace: &Trace| {
        let mut rest = trace.header.rest.clone();
        // All files that rowmill writes have these keys, even if the source file does not.
        rest.remove("displayTimeUnit");
        rest.remove("schemaVersion");
        rest
    };
    assert_eq!(without_unit(before), without_unit(after));
}

fn category(trace: &Trace, row: u32) -> &str {
    &trace.categories[usize::from(trace.slices.category[row as usize])].name
}

fn check_track(before: &Trace, after: &Trace, (old, new): (TrackId, TrackId)) {
    assert_eq!(before.tracks[old.0 as usize], after.tracks[new.0 as usize]);
}

fn check_columns(before: &Trace, after: &Trace) {
    let (old, new) = (&before.slices, &after.slices);
    // Values are compared as debug texts, in which NaN equals NaN.
    let text = |value: &dyn std::fmt::Debug| format!("{value:?}");
    macro_rules! check {
        ($($column:ident)*) => {
            $(check_column(
                stringify!($column),
                (&old.$column, &new.$column),
                (|value| text(value), |value| text(value)),
            );)*
        };
    }
    check!(bytes bandwidth launch_shape sequence forward_thread record_function event_index);
    check!(python sync graph_node unfinished);
    let words = |trace: &Trace, collective: &trace::store::Collective| {
        let ids = [
            collective.name,
            collective.dtype,
            collective.splits_in,
            collective.splits_out,
            collective.group,
            collective.group_description,
            collective.group_ranks,
        ];
        let numbers = (collective.elements_in, collective.elements_out, collective.group_size);
        let texts = ids.map(|id| trace.strings.get(id).to_owned());
        (texts, numbers, collective.sequence)
    };
    check_column(
        "collective",
        (&old.collective, &new.collective),
        (|value| words(before, value), |value| words(after, value)),
    );
}

fn check_flows(before: &Trace, after: &Trace) {
    assert_eq!(before.flows.len(), after.flows.len());
    for (old, new) in before.flows.iter().zip(&after.flows) {
        assert_eq!((old.phase, old.id, old.time), (new.phase, new.id, new.time));
        check_track(before, after, (old.track, new.track));
        let name = |trace: &Trace, category| trace.categories[usize::from(category)].name.clone();
        assert_eq!(name(before, old.category), name(after, new.category));
    }
}

/// Checks that counters, points in time and allocations of two traces are equal.
pub fn check_marks(before: &Trace, after: &Trace) {
    assert_eq!(before.counters.len(), after.counters.len());
    for (old, new) in before.counters.iter().zip(&after.counters) {
        assert_eq!(before.strings.get(old.name), after.strings.get(new.name));
        assert_eq!(before.strings.get(old.series), after.strings.get(new.series));
        assert_eq!((old.time, old.value.to_bits()), (new.time, new.value.to_bits()));
        check_track(before, after, (old.track, new.track));
    }
    assert_eq!(before.instants.len(), after.instants.len());
    for (old, new) in before.instants.iter().zip(&after.instants) {
        assert_eq!(before.strings.get(old.name), after.strings.get(new.name));
        assert_eq!(old.time, new.time);
        check_track(before, after, (old.track, new.track));
    }
    assert_eq!(before.allocations.len(), after.allocations.len());
    for (old, new) in before.allocations.iter().zip(&after.allocations) {
        check_track(before, after, (old.track, new.track));
        let mut old = *old;
        old.track = new.track;
        assert_eq!(old, *new);
    }
}

#[test]
fn rewritten_trace_keeps_its_arguments() {
    for name in FILES {
        let Some(job) = fixture(name) else { return };
        for trace in &job.traces {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("again.json");
            let merged = merge::alone(trace);
            let written = export::write(&path, &merged, &options(Overlaps::Keep)).unwrap();
            assert_eq!(written.slices_typed_only, 0, "{name}");
            let again = open::read(&ReadRequest { paths: vec![path], threads: 1 }).unwrap();
            check_same(trace, &again.traces[0]);
            // For some of the slices, arguments that no column stores must be equal too.
            let rows: Vec<u32> = trace.rows().step_by(1 + trace.slices.len() / 50).collect();
            let arguments = |trace| open::arguments(trace, &rows).unwrap();
            assert_eq!(arguments(trace), arguments(&again.traces[0]), "{name}");
        }
    }
}

#[test]
fn rewritten_trace_keeps_its_columns() {
    for name in FILES {
        let Some(job) = fixture(name) else { return };
        for trace in &job.traces {
            let options = Options { arguments: WhichArguments::Typed, ..options(Overlaps::Keep) };
            check_same(trace, &rewritten(trace, "again.json.gz", &options).0);
        }
    }
}

#[test]
fn only_overlapping_slices_move_to_other_lanes() {
    for name in FILES {
        let Some(job) = fixture(name) else { return };
        for trace in &job.traces {
            let (again, written) = rewritten(trace, "again.json.zst", &options(Overlaps::Lanes));
            assert_eq!(trace.slices.start, again.slices.start);
            let moved = trace.rows().filter(|row| trace.track(*row).tid != again.track(*row).tid);
            assert_eq!(moved.count() as u64, written.slices_moved, "{name}");
        }
    }
}

#[test]
fn arrows_follow_slices_to_their_lane() {
    let mut trace = Trace::default();
    for (correlation, span) in [(0, 10_000), (5_000, 15_000), (6_000, 7_000)].iter().enumerate() {
        let mut kernel = NewSlice::new("kernel", "k", (0, 7), *span);
        kernel.correlation = Some(correlation as u64 + 1);
        trace.push(&kernel);
    }
    let category = trace.category("ac2g");
    let track = trace.slices.track[1];
    trace.flows.push(Flow { phase: FlowPhase::End, category, id: 2, track, time: 5_000 });
    let (again, written) = rewritten(&trace, "again.json", &options(Overlaps::Lanes));
    assert_eq!(written.slices_moved, 1);
    let tids: Vec<_> = again.rows().map(|row| again.track(row).tid.to_string()).collect();
    assert_eq!(tids, ["7", "8", "7"]);
    assert_eq!(again.track(1).thread_name, "stream 7 (lane 2)");
    assert_eq!(again.flows[0].track, again.slices.track[1]);
}

#[test]
fn computed_counters_are_written() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("kernel", "k", (0, 7), (2_000, 3_000)));
    let counter = Counter {
        rank: 0,
        name: "Queue length".to_owned(),
        unit: "kernels".to_owned(),
        samples: vec![(2_000, 1.0), (3_000, 0.0)],
    };
    let options = Options { counters: vec![counter], ..options(Overlaps::Lanes) };
    let (again, written) = rewritten(&trace, "again.json", &options);
    assert_eq!(written.counters, 2);
    let samples: Vec<_> = again.counters.iter().map(|sample| (sample.time, sample.value)).collect();
    assert_eq!(samples, [(2_000, 1.0), (3_000, 0.0)]);
    assert_eq!(again.strings.get(again.counters[0].series), "kernels");
}

#[test]
fn unusual_texts_and_empty_traces_give_valid_files() {
    let mut trace = Trace::default();
    rewritten(&trace, "again.json", &options(Overlaps::Lanes));
    let odd = "a \"quote\", a \\ and a \u{1}\n ü";
    trace.push(&NewSlice::new(odd, odd, (-1, 0), (1, 2)));
    let (again, _) = rewritten(&trace, "again.json", &options(Overlaps::Lanes));
    check_same(&trace, &again);
    assert_eq!(again.name(0), odd);
}
