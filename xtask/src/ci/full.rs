//! Stages that are slow or heavy: licences, comparison with the Python tools, long property tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::cargo::cargo;
use crate::ci::tool;
use crate::command;
use crate::error::Error;
use crate::tree;

/// What the traces must open in, pinned: the tool's launch names and rounding change between
/// versions.
const TRACE_PACKAGES: [&str; 2] = ["traceinsight==0.6.1", "pandas<3"];
/// Whose schema decodes merged traces.
const PERFETTO_PACKAGES: [&str; 2] = ["perfetto==0.59.1", "protobuf<8"];
/// Eight ranks of one job, among the fixtures.
const RANKS: &str = "traces/dlrm8/dlrm_kineto.tar.gz";
/// What exported weights must agree with.
const TORCH_PACKAGES: [&str; 3] = ["torch==2.14.1", "numpy<3", "safetensors<1"];
/// What must read the figures of a run.
const TENSORBOARD_PACKAGES: [&str; 1] = ["tensorboard<3"];
/// What a suite of PyTorch runs is made with; the same torch as in `TORCH_PACKAGES`.
const SUITE_REQUIREMENTS: &str = "bench/collect/requirements.txt";
/// Whose processes are captured: the protocol was measured with it.
pub const CAPTURE_PACKAGES: [&str; 1] = ["torch==2.15.0"];
/// The server of S3 that data is read from.
const S3_PACKAGES: [&str; 2] = ["moto[server]==5.2.5", "pyarrow<30"];
/// Scrapes the agent's pages, and checks rules.
pub const PROMETHEUS: tool::Program = ("prometheus", "prometheus");
/// How long a process swaps the file that is captured; the everyday run has three seconds.
const CAPTURE_RACE_S: &str = "30";
/// Keeps what is compared small: a few steps on a few rows.
const TRAIN: &str = "train dlrm-criteo-kaggle --train rows.txt --run run --set rows_cap=2000 \
                     --set training.steps=100 --trace trace --trace-steps 10..20";

/// Cases per property; the everyday run has the library's default of 256.
const CASES: &str = "20000";
/// Random shapes of each GPU kernel; the everyday run has two.
const SHAPES: &str = "40";

pub fn licences() -> Result<String, Error> {
    tool::install_subcommand("deny", "cargo-deny")?;
    command::run(&mut cargo(&["deny", "check", "licenses", "bans"])).map(|()| String::new())
}

/// Trains on made data, opens the trace and the exported weights in Python, and takes the same
/// steps as PyTorch.
pub fn compare() -> Result<String, Error> {
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release"]))?;
    let folder = root.join("target/compare");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    }
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    for words in [
        "data synth rows.txt --rows 20000",
        TRAIN,
        "checkpoint export run --to torch torch.safetensors",
        "checkpoint export run --to torchrec torchrec.safetensors",
        "score run rows.txt --output probabilities.txt",
    ] {
        let mut rowmill = Command::new(root.join("target/release/rowmill"));
        command::run(rowmill.args(words.split_whitespace()).current_dir(&folder))?;
    }
    let python = environment(&root.join("target/venv-traceinsight"), &TRACE_PACKAGES)?;
    let mut opens = script(&python, &root, "trace_opens.py");
    command::run(opens.arg(folder.join("trace")).env("HTA_DISABLE_NS_ROUNDING", "1"))?;
    let merged = merged_opens(&root, &folder)?;
    let python = environment(&root.join("target/venv-torch"), &TORCH_PACKAGES)?;
    for export in ["torch.safetensors", "torchrec.safetensors"] {
        let mut agrees = script(&python, &root, "torch_agrees.py");
        agrees.args([export, "rows.txt", "probabilities.txt"]);
        command::run(agrees.current_dir(&folder))?;
    }
    let mut files = script(&python, &root, "pytorch_files.py");
    files.arg("--rowmill").arg(root.join("target/release/rowmill"));
    command::run(files.current_dir(&folder))?;
    let board = environment(&root.join("target/venv-tensorboard"), &TENSORBOARD_PACKAGES)?;
    command::run(script(&board, &root, "tensorboard_opens.py").arg("run").current_dir(&folder))?;
    let mut forced = script(&python, &root, "teacher_forced.py");
    forced.args(["--folder", "forced", "--output", "teacher_forced.json", "--rowmill"]);
    command::run(forced.arg(root.join("target/release/rowmill")).current_dir(&folder))?;
    let opens = TRACE_PACKAGES.join(" and ");
    Ok(format!(
        "{opens} open the trace, {} agrees in scores and steps; {merged}",
        TORCH_PACKAGES[0]
    ))
}

/// Merges the traces of eight ranks, and opens the results in Python.
fn merged_opens(root: &Path, folder: &Path) -> Result<String, Error> {
    let fixtures = fixtures(root);
    // The product runs in another folder.
    let Ok(ranks) = fixtures.join(RANKS).canonicalize() else {
        return Ok(format!("SKIPPED merged traces: no {RANKS} in {}", fixtures.display()));
    };
    let merged = ["merged.json.gz", "merged.pftrace"];
    for name in merged {
        let mut rowmill = Command::new(root.join("target/release/rowmill"));
        rowmill.args(["trace", "merge"]).arg(&ranks).args(["--out", name]);
        command::run(rowmill.current_dir(folder))?;
    }
    let packages = [TRACE_PACKAGES, PERFETTO_PACKAGES].concat();
    let python = environment(&root.join("target/venv-traceinsight"), &packages)?;
    let mut opens = script(&python, root, "merged_opens.py");
    command::run(opens.args(merged).arg(&ranks).current_dir(folder))?;
    Ok(format!("merged traces open there and in {}", PERFETTO_PACKAGES[0]))
}

pub(super) fn fixtures(root: &Path) -> PathBuf {
    let beside = || root.join("../shared/data");
    std::env::var_os("ROWMILL_FIXTURES").map_or_else(beside, PathBuf::from)
}

/// The interpreter of a virtual environment with `packages`, made where it is missing.
pub(super) fn environment(folder: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let python = folder.join("bin/python");
    if !python.exists() {
        command::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    command::run(Command::new(&python).args(pip).args(packages))?;
    Ok(python)
}

fn script(python: &Path, root: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(root.join("bench/compare").join(name));
    command
}

/// Trains on data in a store that speaks S3.
pub fn objects() -> Result<String, Error> {
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release"]))?;
    let python = environment(&root.join("target/venv-objects"), &S3_PACKAGES)?;
    let mut script = script(&python, &root, "object_store.py");
    command::run(script.arg("--rowmill").arg(root.join("target/release/rowmill")))?;
    Ok(format!("text, gzip and Parquet from {} train as from files", S3_PACKAGES[0]))
}

/// Captures traces of running PyTorch jobs, and of a process that swaps files all the time.
pub fn capture() -> Result<String, Error> {
    let root = tree::root();
    let mut race = cargo(&["test", "--release", "-p", "rowmill", "--test", "it", "swaps_files"]);
    command::run(race.env("ROWMILL_CAPTURE_RACE_S", CAPTURE_RACE_S))?;
    command::run(&mut cargo(&["build", "--release"]))?;
    let python = environment(&root.join("target/venv-capture"), &CAPTURE_PACKAGES)?;
    let mut jobs = script(&python, &root, "capture_jobs.py");
    command::run(jobs.arg("--rowmill").arg(root.join("target/release/rowmill")))?;
    command::run(&mut cargo(&["build", "--release", "-p", "agent"]))?;
    let mut fleet = script(&python, &root, "fleet_jobs.py");
    fleet.arg("--rowmill").arg(root.join("target/release/rowmill"));
    let hta = environment(&root.join("target/venv-traceinsight"), &TRACE_PACKAGES)?;
    fleet.arg("--hta").arg(hta);
    command::run(fleet.arg("--agent").arg(root.join("target/release/rowmill-agent")))?;
    let missing = tool::install_program(PROMETHEUS);
    command::run(&mut cargo(&["test", "--release", "-p", "agent", "--test", "it", "pages::"]))?;
    let rules = root.join("deploy/prometheus");
    for words in [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]] {
        if missing.is_none() {
            command::run(Command::new("promtool").args(words).current_dir(&rules))?;
        }
    }
    Ok(missing.unwrap_or_else(|| format!("{} answers", CAPTURE_PACKAGES[0])))
}

/// Records a small suite of PyTorch runs and checks it as the recorded ones are checked.
pub fn suite() -> Result<String, Error> {
    let root = tree::root();
    let requirements = root.join(SUITE_REQUIREMENTS).display().to_string();
    let python = environment(&root.join("target/venv-torch"), &["-r", &requirements])?;
    let collect = |name: &str| {
        let mut command = Command::new(&python);
        // What is checked is a suite's form; threads that wait for each other only take time.
        command.arg(root.join("bench/collect").join(name)).env("OMP_NUM_THREADS", "1");
        command
    };
    command::run(&mut collect("selftest.py"))?;
    let folder = root.join("target/suite-fresh");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    }
    let quick = ["--device", "cpu", "--quick", "--out"];
    command::run(collect("record.py").args(quick).arg(&folder))?;
    let mut tests = cargo(&["test", "--release", "-p", "trace", "--test", "it", "suite"]);
    command::run(tests.env("ROWMILL_SUITE", &folder)).map(|()| "a fresh suite is whole".to_owned())
}

/// Starts ranks as processes under each launcher, and loses them in every way.
pub fn processes() -> Result<String, Error> {
    let launchers = [tool::OPEN_MPI, tool::MPICH];
    let missing: Vec<String> = launchers.into_iter().filter_map(tool::install_program).collect();
    for (package, tests) in [("comm", "mpi::"), ("rowmill", "processes::")] {
        let mut tests = cargo(&["test", "--release", "-p", package, "--test", "it", tests]);
        command::run(tests.env("ROWMILL_PROCESSES", "full"))?;
    }
    Ok(if missing.is_empty() { "under both launchers".to_owned() } else { missing.join("; ") })
}

pub fn fuzz() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "data", "-p", "device"]);
    command::run(tests.env("PROPTEST_CASES", CASES).env("ROWMILL_SHAPES", SHAPES))?;
    Ok(format!("{CASES} cases a property, {SHAPES} random shapes a GPU kernel"))
}

/// Takes each guard of every GPU kernel out, one at a time, and expects a test to fail.
pub fn mutation() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "device", "--test", "it", "mutation::"]);
    command::run(tests.env("ROWMILL_MUTATION", "full"))?;
    Ok("every guard is missed, or listed in crates/device/survivors.tsv".to_owned())
}

/// Runs each GPU kernel on the emulator under the C++ compiler's own sanitizers, and the operations
/// of the CPU under Rust's AddressSanitizer, where every part of a shared slice is checked too.
pub fn sanitizers() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "device", "--test", "it", "sanitizers::"]);
    command::run(tests.env("ROWMILL_SANITIZERS", "full"))?;
    // With a target named, build scripts and macros are left as they are.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = ["test", "--release", "-p", "device", "--lib", "--tests", "--target", &target];
    let mut tests = cargo(&words);
    tests.args(["--target-dir", "target/address", "--", "--skip", "cuda"]);
    // A stable compiler has the sanitizer's library, but takes the flag only if it is told to.
    tests.env("RUSTC_BOOTSTRAP", "1").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    tests.env("RUSTFLAGS", "-Zsanitizer=address -Cdebug-assertions");
    command::run(&mut tests)?;
    Ok("no kernel makes AddressSanitizer or UndefinedBehaviorSanitizer speak, nor does an \
        operation of the CPU"
        .to_owned())
}

/// Trains every configuration under a memory limit, one after the other.
pub fn memory() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "rowmill", "--test", "it", "memory::"]);
    tests.args(["--", "--test-threads=1"]);
    command::run(tests.env("ROWMILL_MEMORY", "full")).map(|()| "all fit their estimates".to_owned())
}

/// Trains every configuration under every ready-made plan, and writes its steps down.
pub fn written() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "rowmill", "--test", "it", "written::"]);
    command::run(tests.env("ROWMILL_WRITTEN", "full")).map(|()| "as they are recorded".to_owned())
}

/// Predicts a third of the changes that the kept evidence is of, then makes them; and holds cures
/// of the recorded suite against their predictions.
pub fn evidence() -> Result<String, Error> {
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release", "-p", "rowmill", "-p", "bench"]))?;
    let script = |name: &str| {
        let mut command = Command::new("python3");
        command.current_dir(&root).arg(root.join("bench/compare").join(name));
        command.arg("--rowmill").arg(root.join("target/release/rowmill"));
        command
    };
    command::run(&mut script("predict_suite.py"))?;
    let quick = ["--quick", "--turns", "2"];
    command::run(script("predict_evidence.py").args(quick))?;
    Ok("each measured step within 10 % of what was predicted before".to_owned())
}

/// Damages prepared data and checkpoints, and the traces of the fixtures, whole ones and more often
/// than every day.
pub fn corruption() -> Result<String, Error> {
    let damaged = |package: &str, test: &str| {
        let mut tests = cargo(&["test", "--release", "-p", package, "--test", "it", test]);
        command::run(tests.env("ROWMILL_CORRUPTION", "full"))
    };
    damaged("train", "damage")?;
    let weights = "no flipped bit leads to other weights";
    let traces = fixtures(&tree::root()).join("traces");
    if !traces.is_dir() {
        return Ok(format!("{weights}; SKIPPED traces: no {}", traces.display()));
    }
    damaged("trace", "")?;
    damaged("analyze", "cut::")?;
    damaged("rowmill", "cut::")?;
    Ok(format!(
        "{weights}; no damaged trace makes a reader panic, none that is cut passes as whole"
    ))
}
