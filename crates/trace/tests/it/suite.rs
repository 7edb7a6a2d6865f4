//! Checks the recorded suites of PyTorch runs (`bench/record/*/suite`): all listed files must exist
//! and be readable. `ROWMILL_SUITE` names an additional suite that `bench/collect` has just
//! recorded.

mod manifest;
mod table;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use trace::execution_trace;
use trace::link::{self, LinkMethod};
use trace::open::{self, ReadRequest};
use trace::store::{EventKind, Trace};

use manifest::{File, Suite};

/// Largest total size of a suite in bytes.
const BYTES_MOST: u64 = 25_000_000;
/// The possible kinds of files in a suite.
const KINDS: [&str; 10] = [
    "antipatterns",
    "case_times",
    "case_trace",
    "execution_trace",
    "kineto",
    "kineto_of_execution_trace",
    "kineto_with_stacks",
    "microbench",
    "report",
    "step_times",
];
const STATUSES: [&str; 4] = ["done", "failed", "out_of_memory", "skipped"];
const MICROBENCH: [&str; 10] = [
    "op",
    "shape",
    "dtype",
    "kernel",
    "median_us",
    "p5_us",
    "p95_us",
    "samples",
    "timer",
    "kernels",
];
const ANTIPATTERNS: usize = 11;

/// Returns the committed suites, and the suite that the environment names.
fn suites() -> Vec<Suite> {
    let record = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/record"));
    let machines = fs::read_dir(record).unwrap().map(|entry| entry.unwrap().path().join("suite"));
    let fresh = std::env::var_os("ROWMILL_SUITE").map(PathBuf::from);
    let named = fresh.clone();
    let mut folders: Vec<PathBuf> =
        machines.filter(|folder| folder.join("suite.json").exists()).chain(fresh).collect();
    folders.sort();
    assert!(!folders.is_empty(), "no suite in {}", record.display());
    assert!(named.is_none_or(|named| folders.contains(&named)));
    folders.iter().map(|folder| Suite::read(folder)).collect()
}

/// Reads each file of the given kinds, fails if it has losses, and passes it to `check`.
fn each_trace(kinds: &[&str], check: impl Fn(&Suite, &File, &Trace)) {
    for suite in suites() {
        for file in suite.files.iter().filter(|file| kinds.contains(&file.kind.as_str())) {
            check(&suite, file, &opened(&suite.path(file)));
        }
    }
}

fn opened(path: &Path) -> Trace {
    let request = ReadRequest { paths: vec![path.to_owned()], threads: 1 };
    let trace = open::read(&request).unwrap().traces.remove(0);
    assert!(trace.losses.is_empty(), "{}: {:?}", path.display(), trace.losses);
    trace
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_list_names_every_file_with_its_hash() {
    for suite in suites() {
        let mut listed = BTreeSet::from([suite.folder.join("suite.json")]);
        for file in &suite.files {
            let path = suite.path(file);
            let data = fs::read(&path).unwrap();
            assert_eq!(data.len() as u64, file.bytes, "{}", path.display());
            assert_eq!(sha256(&data), file.sha256, "{}", path.display());
            assert!(KINDS.contains(&file.kind.as_str()), "{}: {:?}", path.display(), file.kind);
            assert!(listed.insert(path), "{}: listed twice", file.path);
        }
        let there = manifest::files_below(&suite.folder);
        let unlisted: Vec<&PathBuf> = there.difference(&listed).collect();
        assert!(unlisted.is_empty(), "not listed: {unlisted:?}");
        assert!(suite.files.iter().map(|file| file.bytes).sum::<u64>() <= BYTES_MOST);
    }
}

#[test]
fn every_run_has_a_status() {
    for suite in suites() {
        let done = suite.runs.iter().filter(|run| run["status"] == "done").count();
        assert!(2 * done > suite.runs.len(), "{done} of {} runs are done", suite.runs.len());
        for run in &suite.runs {
            let status = run["status"].as_str().unwrap();
            assert!(STATUSES.contains(&status), "{run}");
            assert_eq!(run["reason"].is_null(), status == "done", "{run}");
            let has_file = suite.files.iter().any(|file| Some(&*file.run) == run["id"].as_str());
            assert_eq!(has_file, status == "done", "{run}");
        }
    }
}

#[test]
fn every_kineto_trace_opens_and_has_its_steps() {
    let kinds = ["kineto", "kineto_of_execution_trace", "kineto_with_stacks", "case_trace"];
    each_trace(&kinds, |suite, file, trace| {
        let rows_of_kind =
            |kind: EventKind| trace.rows().filter(move |row| trace.kind(*row) == kind);
        let steps = rows_of_kind(EventKind::Annotation)
            .filter(|row| trace.name(*row).starts_with("ProfilerStep#"));
        assert_eq!(Some(steps.count() as u64), file.steps, "{}", file.path);
        let kernels = rows_of_kind(EventKind::Kernel);
        assert_eq!(kernels.count() > 0, suite.device == "cuda", "{}", file.path);
        let has_frames = trace.slices.python.iter().next().is_some();
        assert_eq!(has_frames, file.kind == "kineto_with_stacks", "{}", file.path);
    });
}

#[test]
fn execution_traces_link_with_their_twins_by_record_function() {
    each_trace(&["kineto_of_execution_trace"], |suite, twin, trace| {
        let is_its = |file: &&File| file.kind == "execution_trace" && file.run == twin.run;
        let file = suite.files.iter().find(is_its).unwrap();
        let execution = execution_trace::read(&suite.path(file)).unwrap().remove(0);
        assert!(execution.losses.is_empty(), "{}: {:?}", file.path, execution.losses);
        let link = link::join(&execution, trace);
        assert_eq!(link.method, LinkMethod::RecordFunction, "{}", file.path);
        assert_eq!(link.node_score(), Some(1.0), "{}", file.path);
    });
}

#[test]
fn every_model_has_times_and_a_trace() {
    for suite in suites() {
        let runs_with = |kind: &str| -> BTreeSet<String> {
            let files = suite.files.iter().filter(|file| file.kind == kind);
            files.map(|file| format!("{} {:?} {:?}", file.model, file.form, file.pooling)).collect()
        };
        assert!(runs_with("step_times").len() >= 11, "{:?}", runs_with("step_times"));
        for kind in ["kineto", "execution_trace", "kineto_of_execution_trace"] {
            assert_eq!(runs_with(kind), runs_with("step_times"), "{kind}");
        }
        assert!(runs_with("kineto_with_stacks").len() >= 9);
    }
}

#[test]
fn times_are_positive_and_in_order() {
    for suite in suites() {
        let kinds = ["step_times", "case_times"];
        for file in suite.files.iter().filter(|file| kinds.contains(&file.kind.as_str())) {
            let times: Value =
                serde_json::from_slice(&fs::read(suite.path(file)).unwrap()).unwrap();
            assert_eq!(times["version"], 1, "{}", file.path);
            assert_eq!(times["after_profiler"], false, "{}: CUPTI was loaded", file.path);
            for group in ["step_us", "synchronized_us"] {
                let time = |name: &str| times[group][name].as_f64().unwrap();
                ordered(time("p5"), time("median"), time("p95"), &file.path);
            }
            let samples = times["samples_us"].as_array().unwrap().len() as u64;
            assert_eq!(Some(samples), times["steps"].as_u64(), "{}", file.path);
        }
    }
}

fn ordered(p5: f64, median: f64, p95: f64, place: &str) {
    assert!(0.0 < p5 && p5 <= median && median <= p95, "{place}: {p5}, {median}, {p95}");
}

#[test]
fn every_kernel_has_a_table_of_times() {
    for suite in suites() {
        let files: Vec<&File> = suite.files_of("microbench").collect();
        assert!(files.len() >= 18, "{}", files.len());
        for file in files {
            let rows = table::read(&fs::read_to_string(suite.path(file)).unwrap());
            assert_eq!(rows[0], MICROBENCH, "{}", file.path);
            assert!(rows.len() > 1, "{}: no row", file.path);
            for row in &rows[1..] {
                let number = |at: usize| row[at].parse::<f64>().unwrap();
                ordered(number(5), number(4), number(6), &file.path);
                assert!(number(7) >= 5.0, "{}: {row:?}", file.path);
                let axes = row[1].split(' ').map(|axis| axis.split_once('=').unwrap());
                assert!(axes.into_iter().all(|(_, size)| size.parse::<u64>().is_ok()), "{row:?}");
            }
        }
    }
}

#[test]
fn antipatterns_have_a_trace_each_or_a_reason() {
    for suite in suites() {
        let file = suite.files_of("antipatterns").next().unwrap();
        let rows = table::read(&fs::read_to_string(suite.path(file)).unwrap());
        assert_eq!(rows[0][..4], ["pair", "variant", "status", "reason"]);
        assert_eq!(rows.len() - 1, 2 * ANTIPATTERNS);
        for row in &rows[1..] {
            let trace = format!("cases/{}/{}.json.gz", row[0], row[1]);
            let has_trace = suite.files_of("case_trace").any(|file| file.path == trace);
            assert_eq!(has_trace, row[2] == "done", "{row:?}");
            assert_ne!(row[3].is_empty(), row[2] != "done", "{row:?}");
        }
    }
}

#[test]
fn no_file_names_the_machine() {
    for suite in suites() {
        for file in suite.files.iter().filter(|file| file.path.ends_with(".gz")) {
            let mut text = Vec::new();
            let compressed = fs::File::open(suite.path(file)).unwrap();
            flate2::read::GzDecoder::new(compressed).read_to_end(&mut text).unwrap();
            let text = String::from_utf8_lossy(&text);
            for word in ["\"host_name\"", "\"username\"", "\"/home/", "\"/root/", "\"/tmp/"] {
                assert!(!text.contains(word), "{}: {word}", file.path);
            }
        }
    }
}
