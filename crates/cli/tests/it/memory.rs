//! Compares the memory estimate with the real binary. Each ready-made configuration runs in a
//! control group whose memory limit is the estimate plus a tenth. The peak of the run must be
//! within a tenth of the estimate. With a limit 15 % below the estimate, the run must be refused
//! before anything is written.
//!
//! The peak is `VmHWM`, the largest resident memory of the process. The control group also counts
//! the page cache of the files that are read and written. The kernel drops that cache when the
//! group reaches its limit.
//!
//! Every day, the smallest configuration must be refused. All configurations are tested with
//! `ROWMILL_LONG=1`, against an optimized program, because unoptimized code takes more memory than
//! the estimate says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use testkit::ProgramOutput;

use crate::fixture::Place;

/// Time between two readings of the peak of a running process. The peak never falls.
const LOOK: Duration = Duration::from_millis(3);
/// Largest relative error of an estimate, and the share by which the limit exceeds the estimate.
const TENTH: f64 = 0.1;
/// Largest number of runs, which end as soon as one peaks near its estimate. The peak depends on
/// how full the data loaders are, by some MiB. For the smallest runs, that is more than a tenth of
/// the memory, and one run in five stays below. A run that exceeds the limit is not repeated.
const RUNS: usize = 5;
/// A memory limit that is below the estimate by this share must be refused.
const LESS: f64 = 0.15;

/// A configuration with options that keep its run short. The run has a checkpoint and an evaluation
/// between steps, and both at the end.
struct Case {
    /// Arguments of the command line after `train`.
    words: &'static str,
    /// A file of the fixtures that the configuration needs.
    fixture: Option<&'static str>,
}

/// The configuration that needs the least memory.
const SMALLEST: Case = Case {
    words: "adult-income --train DATA/adult/adult-train.csv.gz --evaluation \
            DATA/adult/adult-test.csv.gz --set epochs=2 --set checkpoint_every=100 \
            --set evaluate_every=100",
    fixture: Some("adult/adult-train.csv.gz"),
};

/// The other configurations, and some with other numbers of ranks, optimizers and formats.
/// `dlrm-dcnv2` alone exceeds the memory of a machine with 24 GiB.
const FULL: [Case; 13] = [
    case(
        "dlrm-ddp --synthetic 30000 --set steps=10 --set checkpoint_every=4 --set hold_out=0.1 --set evaluate_every=5",
    ),
    case(
        "dlrm-1000-tables --synthetic 9000 --set steps=3 --set checkpoint_every=2 --set hold_out=0.1 --set evaluate_every=2",
    ),
    case(
        "dlrm-criteo-kaggle --synthetic 60000 --set steps=40 --set checkpoint_every=20 --set keep_checkpoints=1",
    ),
    case(
        "dlrm-default --synthetic 30000 --set steps=6 --set checkpoint_every=3 --set keep_checkpoints=1 --set hold_out=0.1",
    ),
    case("dlrm-mlperf --synthetic 30000 --set steps=4 --set keep_checkpoints=1 --set hold_out=0.1"),
    case(
        "dlrm-dcnv2 --synthetic 60000 --set steps=3 --set rows_cap=100000 --set batch_size=16384 --set keep_checkpoints=1",
    ),
    case("dlrm-ddp --synthetic 30000 --set steps=10 --ranks 4 --sharding row"),
    case("dlrm-ddp --synthetic 30000 --set steps=10 --ranks 7 --sharding column"),
    case("dlrm-ddp --synthetic 30000 --set steps=10 --set precision=bf16 --set checkpoint_every=2"),
    case("dlrm-ddp --synthetic 40000 --set steps=4 --set batch_size=16384"),
    case(
        "dlrm-ddp --synthetic 30000 --set steps=10 --set optimizer.sparse.kind=adagrad --set optimizer.dense.kind=adam",
    ),
    case("dlrm-ddp --synthetic 30000 --set steps=10 --set optimizer.sparse.kind=rowwise_adagrad"),
    case(
        "dlrm-ddp --synthetic 30000 --set steps=10 --set model.tables=[{name=\"t{0..7}\",rows=300000,dim=128,data_type=\"f16\"}]",
    ),
];

const fn case(words: &'static str) -> Case {
    Case { words, fixture: None }
}

#[test]
fn a_limit_below_the_estimate_is_refused() {
    if let Some(LimitedRun { place, words, group, estimate }) = LimitedRun::prepare(&SMALLEST) {
        refuse_less(&place, &words, group.as_ref(), estimate);
    }
}

#[test]
fn issue_23_all_configurations_fit_into_their_estimates() {
    if !testkit::has_time("all configurations under their estimates") {
        return;
    }
    for case in std::iter::once(&SMALLEST).chain(&FULL) {
        check(case);
    }
}

#[test]
fn the_estimate_is_shown_and_writes_nothing() {
    let place = Place::new();
    let words = "train job.toml --train train.csv --run run --estimate";
    let ran = place.done(words);
    for text in ["estimated memory, at most while", "program and threads", "in all", "available"] {
        assert!(ran.stdout.contains(text), "no {text:?} in\n{}", ran.stdout);
    }
    let estimate = &place.done(&format!("{words} --format json")).last()["estimate"];
    assert!(total(estimate) > 0, "{estimate}");
    assert!(!place.path("run").exists());
    let ran = place.done("train job.toml --train train.csv --run run --set steps=1 -v");
    assert!(ran.stderr.contains("estimated memory, at most while"), "{}", ran.stderr);
}

/// A run whose memory can be limited.
struct LimitedRun {
    place: Place,
    /// Its command line.
    words: String,
    /// The control group, unless this process may not create one.
    group: Option<Group>,
    /// Estimated memory in bytes.
    estimate: u64,
}

impl LimitedRun {
    /// Returns `None` and says why if the fixture or the memory of the case is missing.
    fn prepare(case: &Case) -> Option<Self> {
        if case.fixture.is_some_and(|file| testkit::fixture::path(file).is_none()) {
            return None;
        }
        let place = Place::new();
        let words = case.words.replace("DATA", &testkit::fixture::root().display().to_string());
        let words = format!("train {words} --run run");
        let room = place.done(&format!("{words} --estimate --format json")).last();
        let estimate = total(&room["estimate"]);
        if room["available"]["bytes"].as_u64().is_some_and(|available| available < estimate) {
            testkit::skip(case.words, "more memory");
            return None;
        }
        let group = Group::new();
        if group.is_none() {
            testkit::skip(case.words, "permission to make control groups");
        }
        Some(Self { place, words, group, estimate })
    }
}

/// Asserts that the run is refused under a limit that is too low.
fn refuse_less(place: &Place, words: &str, group: Option<&Group>, estimate: u64) {
    let Some(group) = group else { return };
    group.limit(less(estimate));
    let ran = ProgramOutput::collect(&mut group.command(place, words));
    assert_eq!(ran.code, Some(2), "{words}\n{}", ran.stderr);
    assert!(ran.stderr.contains("memory limit of control group"), "{}", ran.stderr);
    assert!(!place.path("run").exists(), "{words}: refused after writing");
}

fn check(case: &Case) {
    let Some(LimitedRun { place, words, group, estimate }) = LimitedRun::prepare(case) else {
        return;
    };
    refuse_less(&place, &words, group.as_ref(), estimate);
    if let Some(group) = &group {
        group.limit(more(estimate));
    }
    let mut error = f64::INFINITY;
    for run in 0..RUNS {
        let words = format!("{words}{run}");
        let (code, peak, stderr) = watched(match &group {
            Some(group) => group.command(&place, &words),
            None => place.command(&words),
        });
        assert_eq!(code, Some(0), "{words}\n{stderr}");
        error = estimate as f64 / peak as f64 - 1.0;
        let percent = 100.0 * error;
        println!("{}: {} MiB, got {} ({percent:+.1} %)", case.words, estimate >> 20, peak >> 20);
        if error <= TENTH {
            break;
        }
    }
    assert!(error.abs() <= TENTH, "{words}: {} MiB, {:+.1} %", estimate >> 20, 100.0 * error);
}

fn more(bytes: u64) -> u64 {
    (bytes as f64 * (1.0 + TENTH)) as u64
}

fn less(bytes: u64) -> u64 {
    (bytes as f64 * (1.0 - LESS)) as u64
}

/// Returns the total of the moment at which the estimated memory is largest.
fn total(estimate: &Value) -> u64 {
    let moments = estimate["moments"].as_array().unwrap();
    moments.iter().map(|moment| moment["total"].as_u64().unwrap()).max().unwrap()
}

/// Runs `command`. Returns its exit code, its largest resident memory in bytes, and its stderr.
fn watched(mut command: Command) -> (Option<i32>, u64, String) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stderr");
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    let code = loop {
        peak = resident_peak(&child).unwrap_or(peak).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        std::thread::sleep(LOOK);
    };
    (code, peak, fs::read_to_string(&log).unwrap())
}

fn resident_peak(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// A control group for one test, which is removed on drop.
struct Group {
    folder: PathBuf,
    /// Name of the file that sets the memory limit of the group.
    limit: &'static str,
}

impl Group {
    /// Creates a control group. Returns `None` if this machine does not allow a memory limit.
    fn new() -> Option<Self> {
        // Version 1 has a separate hierarchy for memory. In version 2, the memory controller must
        // be enabled in the only hierarchy.
        let one = Path::new("/sys/fs/cgroup/memory");
        let two = Path::new("/sys/fs/cgroup");
        let (root, limit) = if one.join("memory.limit_in_bytes").exists() {
            (one, "memory.limit_in_bytes")
        } else {
            (two, "memory.max")
        };
        let name = format!("rowmill-test-{}-{:?}", std::process::id(), std::thread::current().id());
        let group = Self { folder: root.join(name.replace(['(', ')'], "-")), limit };
        fs::create_dir(&group.folder).ok()?;
        let writable = fs::OpenOptions::new().write(true).open(group.folder.join(limit)).is_ok();
        writable.then_some(group)
    }

    fn limit(&self, bytes: u64) {
        fs::write(self.folder.join(self.limit), bytes.to_string()).unwrap();
    }

    /// Returns a command that runs the binary in the group. A shell enters the group and then
    /// replaces itself with the binary, so that no memory is allocated outside the group.
    fn command(&self, place: &Place, words: &str) -> Command {
        let inner = place.command(words);
        let mut command = Command::new("sh");
        let enter = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        command.args(["-c", enter]).arg(&self.folder).arg(inner.get_program());
        command.args(inner.get_args()).current_dir(place.path(""));
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Removing a group fails for a moment after its last process has ended, so it is tried
        // again.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
