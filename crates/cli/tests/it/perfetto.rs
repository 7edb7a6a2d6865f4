//! Checks that `.pftrace` files written by rowmill can be read back. A converted file must give the
//! same figures as the trace from which it was converted.

use std::fs;

use serde_json::Value;

use crate::fixture::Place;

/// Traces of several versions and vendors. One has call stacks as arguments, and the last has 1,087
/// rows of device work without launches.
const TRACES: [&str; 6] = [
    "modern/h100_timesformer.json.gz",
    "modern/mi300_owlv2.json.gz",
    "modern/mtia_inference.json.gz",
    "modern/resnet50_2021_workers0.json.gz",
    "odd/event_sync_multi_stream.json.gz",
    "trace_diff/test.json.gz",
];

/// Number of traces at the beginning of the list that are converted only in the long run.
const LARGER: usize = 4;

/// Commands that print rows or a page, each of which depends on different columns.
const VERBS: [&str; 14] = [
    "",
    "breakdown",
    "breakdown --by device",
    "idle",
    "idle --by gap",
    "critical-path",
    "critical-path --by segment",
    "kernels",
    "ops",
    "launches",
    "memory",
    "collectives",
    "steps",
    "findings",
];

/// Removes fields that depend on the file and not on the trace in it.
fn without_file(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            ["origin", "text_bytes"].iter().for_each(|key| drop(keys.remove(*key)));
            keys.values_mut().for_each(without_file);
        }
        Value::Array(items) => items.iter_mut().for_each(without_file),
        _ => {}
    }
}

/// Compares rows. On a difference, prints only the first row that differs.
fn differ(expected: &Value, got: &Value, what: &str) {
    let (Value::Array(rows), Value::Array(others)) = (expected, got) else {
        assert_eq!(expected, got, "{what}");
        return;
    };
    assert_eq!(rows.len(), others.len(), "{what}");
    for (row, other) in rows.iter().zip(others) {
        assert_eq!(row, other, "{what}");
    }
}

fn figures(place: &Place, verb: &str, path: &str) -> Vec<Value> {
    let mut lines = place.done(&format!("trace {verb} {path} --format json")).lines();
    lines.iter_mut().for_each(without_file);
    lines
}

#[test]
fn a_converted_trace_has_the_figures_of_its_source() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let place = Place::new();
    let first = if testkit::has_time("the larger traces, converted") { 0 } else { LARGER };
    for name in &TRACES[first..] {
        let source = folder.join(name).display().to_string();
        place.done(&format!("trace convert {source} --out a.pftrace"));
        for verb in VERBS {
            let (expected, got) =
                (figures(&place, verb, &source), figures(&place, verb, "a.pftrace"));
            assert!(!expected.is_empty(), "{name}: {verb}");
            assert_eq!(expected.len(), got.len(), "{name}: {verb}");
            for (expected, got) in expected.iter().zip(&got) {
                differ(expected, got, &format!("{name}: {verb}"));
            }
        }
    }
}

#[test]
fn ranks_of_a_merged_file_are_ranks_again() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let place = Place::new();
    let source = folder.join("dlrm8/dlrm_kineto.tar.gz").display().to_string();
    place.done(&format!("trace merge {source} --out a.pftrace"));
    for verb in ["breakdown", "critical-path", "collectives --by rank"] {
        assert_eq!(figures(&place, verb, &source), figures(&place, verb, "a.pftrace"), "{verb}");
    }
}

#[test]
fn a_conversion_that_loses_arguments_reports_it() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let place = Place::new();
    let source = folder.join("trace_diff/test.json.gz").display().to_string();
    place.done(&format!("trace convert {source} --out a.pftrace"));
    let again = place.done("trace convert a.pftrace --out again.json");
    assert!(again.stderr.contains("have only their main arguments"), "{}", again.stderr);
}

#[test]
fn foreign_and_damaged_pftraces_are_refused_with_a_remedy() {
    let place = Place::new();
    fs::write(place.path("foreign.pftrace"), [10, 4, 64, 1, 80, 1, 10, 2, 80, 1]).unwrap();
    let ran = place.run("trace foreign.pftrace");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("a Perfetto trace that another program"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: rowmill reads back the .pftrace files"), "{}", ran.stderr);

    let event = r#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{}}"#;
    fs::write(place.path("t.json"), format!("{{\"traceEvents\": [{event}]}}")).unwrap();
    place.done("trace convert t.json --out whole.pftrace");
    let whole = fs::read(place.path("whole.pftrace")).unwrap();
    fs::write(place.path("cut.pftrace"), &whole[..whole.len() - 4]).unwrap();
    let ran = place.run("trace cut.pftrace");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("damaged Perfetto trace"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: convert or merge the recording again"), "{}", ran.stderr);
}

#[test]
fn a_cut_recording_stays_cut_through_perfetto_files() {
    let Some(folder) = testkit::fixture::path("traces") else { return };
    let place = Place::new();
    let whole = folder.join("odd/event_sync_multi_stream.json.gz");
    let packed = fs::read(whole).unwrap();
    fs::write(place.path("cut.json.gz"), &packed[..packed.len() * 9 / 10]).unwrap();
    let before = place.run("trace doctor cut.json.gz --format json");
    assert_eq!(before.code, Some(4), "{}", before.stderr);
    place.run("trace convert cut.json.gz --out cut.pftrace");
    let after = place.run("trace doctor cut.pftrace --format json");
    assert_eq!(after.code, Some(4), "{}", after.stderr);
    for ran in [before, after] {
        assert!(ran.stdout.contains("cut-recording"), "{}", ran.stdout);
    }
}
