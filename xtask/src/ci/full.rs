//! The slow stages, which run with `--full`: licenses, comparisons with Python tools, long property
//! tests and others.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::cargo::cargo;
use crate::ci::tool;
use crate::command;
use crate::error::Error;
use crate::tree;

/// The Python tool that must open rowmill's traces. The version is pinned, because launch names and
/// rounding change between versions.
const TRACE_PACKAGES: [&str; 2] = ["traceinsight==0.6.1", "pandas<3"];
/// Packages with the Perfetto schema, by which merged traces are decoded.
const PERFETTO_PACKAGES: [&str; 2] = ["perfetto==0.59.1", "protobuf<8"];
/// Path of the traces of eight ranks of one job, relative to the folder of fixtures.
const RANKS: &str = "traces/dlrm8/dlrm_kineto.tar.gz";
/// The version of PyTorch that must compute the same scores from exported weights.
const TORCH_PACKAGES: [&str; 3] = ["torch==2.14.1", "numpy<3", "safetensors<1"];
/// The version of TensorBoard that must read the metrics of a run.
const TENSORBOARD_PACKAGES: [&str; 1] = ["tensorboard<3"];
/// The packages that record a suite of PyTorch runs. The suite uses the same version of torch as
/// `TORCH_PACKAGES`.
const SUITE_REQUIREMENTS: &str = "bench/collect/requirements.txt";
/// The version of PyTorch whose processes are captured. The capture protocol was tested with this
/// version.
pub const CAPTURE_PACKAGES: [&str; 1] = ["torch==2.15.0"];
/// Python packages of the stage `objects`: moto serves objects as S3 does, and pyarrow writes the
/// Parquet files.
const S3_PACKAGES: [&str; 2] = ["moto[server]==5.2.5", "pyarrow<30"];
/// Python packages of the stage `hub peers`, which read what the hub sends and stores.
const HUB_PACKAGES: [&str; 4] = ["opentelemetry-proto==1.45.2", "duckdb<3", "chdb<5", "pyspark<5"];
/// Programs of the stage `hub peers`, beside Prometheus.
const HUB_PEERS: [tool::Program; 2] =
    [("victoria-metrics", "victoria-metrics"), ("java", "default-jre-headless")];
/// Prometheus, which scrapes the agent's pages and whose `promtool` checks the alert rules.
pub const PROMETHEUS: tool::Program = ("prometheus", "prometheus");
/// Seconds during which a process keeps swapping the captured file. The everyday run does so for
/// three seconds.
const CAPTURE_RACE_S: &str = "30";
/// The training run that is compared with PyTorch. The run is kept small, with 100 steps on tables
/// of at most 2000 rows.
const TRAIN: &str = "train dlrm-criteo-kaggle --train rows.txt --run run --set rows_cap=2000 \
                     --set training.steps=100 --trace trace --trace-steps 10..20";

/// Number of random jobs for which plans are compared. The everyday run uses three.
const PLAN_CASES: &str = "200";
/// Number of cases per property test. The everyday run uses the library's default of 256.
const CASES: &str = "20000";
/// Number of random shapes per GPU kernel. The everyday run uses two.
const SHAPES: &str = "40";

/// Checks the licenses of all dependencies by cargo-deny.
pub fn check_licences() -> Result<String, Error> {
    tool::install_subcommand("deny", "cargo-deny")?;
    command::run(&mut cargo(&["deny", "check", "licenses", "bans"])).map(|()| String::new())
}

/// Trains on synthetic data, opens the trace and the exported weights in Python, and compares steps
/// with PyTorch.
pub fn compare_with_python() -> Result<String, Error> {
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
    let python = create_environment(&root.join("target/venv-traceinsight"), &TRACE_PACKAGES)?;
    // By default the tool rounds times, so its figures would differ from rowmill's.
    let mut opens = python_script(&python, &root, "trace_opens.py");
    command::run(opens.arg(folder.join("trace")).env("HTA_DISABLE_NS_ROUNDING", "1"))?;
    let merged = open_merged_traces(&root, &folder)?;
    let python = create_environment(&root.join("target/venv-torch"), &TORCH_PACKAGES)?;
    for export in ["torch.safetensors", "torchrec.safetensors"] {
        let mut agrees = python_script(&python, &root, "torch_agrees.py");
        agrees.args([export, "rows.txt", "probabilities.txt"]);
        command::run(agrees.current_dir(&folder))?;
    }
    let mut files = python_script(&python, &root, "pytorch_files.py");
    files.arg("--rowmill").arg(root.join("target/release/rowmill"));
    command::run(files.current_dir(&folder))?;
    let board = create_environment(&root.join("target/venv-tensorboard"), &TENSORBOARD_PACKAGES)?;
    command::run(
        python_script(&board, &root, "tensorboard_opens.py").arg("run").current_dir(&folder),
    )?;
    let mut forced = python_script(&python, &root, "teacher_forced.py");
    forced.args(["--folder", "forced", "--output", "teacher_forced.json", "--rowmill"]);
    command::run(forced.arg(root.join("target/release/rowmill")).current_dir(&folder))?;
    let opens = TRACE_PACKAGES.join(" and ");
    Ok(format!(
        "{opens} open the trace, {} agrees in scores and steps; {merged}",
        TORCH_PACKAGES[0]
    ))
}

/// Merges the traces of eight ranks, and opens the results in Python.
fn open_merged_traces(root: &Path, folder: &Path) -> Result<String, Error> {
    let fixtures = fixtures_folder(root);
    // The program runs in another folder, so the path must be absolute.
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
    let python = create_environment(&root.join("target/venv-traceinsight"), &packages)?;
    let mut opens = python_script(&python, root, "merged_opens.py");
    command::run(opens.args(merged).arg(&ranks).current_dir(folder))?;
    Ok(format!("merged traces open there and in {}", PERFETTO_PACKAGES[0]))
}

pub(super) fn fixtures_folder(root: &Path) -> PathBuf {
    let beside = || root.join("../shared/data");
    std::env::var_os("ROWMILL_FIXTURES").map_or_else(beside, PathBuf::from)
}

/// Installs `packages` into a virtual environment, which is created if it is missing. Returns the
/// path of the Python interpreter.
pub(super) fn create_environment(folder: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let python = folder.join("bin/python");
    if !python.exists() {
        command::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    command::run(Command::new(&python).args(pip).args(packages))?;
    Ok(python)
}

fn python_script(python: &Path, root: &Path, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(root.join("bench/compare").join(name));
    command
}

/// Trains on data from an S3 server.
pub fn train_on_objects() -> Result<String, Error> {
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release"]))?;
    let python = create_environment(&root.join("target/venv-objects"), &S3_PACKAGES)?;
    let mut script = python_script(&python, &root, "object_store.py");
    command::run(script.arg("--rowmill").arg(root.join("target/release/rowmill")))?;
    Ok(format!("text, gzip and Parquet from {} train as from files", S3_PACKAGES[0]))
}

/// Compares the sums of the hub with those that other systems receive or compute from its files.
pub fn compare_with_peers() -> Result<String, Error> {
    let programs = [PROMETHEUS].into_iter().chain(HUB_PEERS);
    let missing: Vec<String> = programs.filter_map(tool::install_program).collect();
    let python = create_environment(&tree::root().join("target/venv-hub"), &HUB_PACKAGES)?;
    let mut tests = cargo(&["test", "--release", "-p", "hub", "--features", "s3", "--test", "it"]);
    tests.args(["--", "outward::", "sql::", "bucket::"]).env("ROWMILL_HUB_PYTHON", &python);
    command::run(tests.env("AWS_ACCESS_KEY_ID", "moto").env("AWS_SECRET_ACCESS_KEY", "moto"))?;
    let peers = "Prometheus, VictoriaMetrics, OpenTelemetry, DuckDB, ClickHouse, Spark, S3 agree";
    Ok(if missing.is_empty() { peers.to_owned() } else { missing.join("; ") })
}

/// Captures traces of running PyTorch jobs, and of a process that keeps swapping the captured file.
pub fn capture_jobs() -> Result<String, Error> {
    let root = tree::root();
    let mut race = cargo(&["test", "--release", "-p", "rowmill", "--test", "it", "swaps_files"]);
    command::run(race.env("ROWMILL_CAPTURE_RACE_S", CAPTURE_RACE_S))?;
    command::run(&mut cargo(&["build", "--release"]))?;
    let python = create_environment(&root.join("target/venv-capture"), &CAPTURE_PACKAGES)?;
    let mut jobs = python_script(&python, &root, "capture_jobs.py");
    command::run(jobs.arg("--rowmill").arg(root.join("target/release/rowmill")))?;
    command::run(&mut cargo(&["build", "--release", "-p", "agent"]))?;
    let mut fleet = python_script(&python, &root, "fleet_jobs.py");
    fleet.arg("--rowmill").arg(root.join("target/release/rowmill"));
    let hta = create_environment(&root.join("target/venv-traceinsight"), &TRACE_PACKAGES)?;
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

/// Records a small suite of PyTorch runs and checks it by the tests that also check the recorded
/// suites.
pub fn record_suite() -> Result<String, Error> {
    let root = tree::root();
    let requirements = root.join(SUITE_REQUIREMENTS).display().to_string();
    let python = create_environment(&root.join("target/venv-torch"), &["-r", &requirements])?;
    let collect = |name: &str| {
        let mut command = Command::new(&python);
        // The test checks only the form of the suite, so one thread is enough, and several would
        // wait for each other.
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

/// Starts ranks as processes under each launcher, and checks that killed and hanging ranks are
/// reported.
pub fn run_processes() -> Result<String, Error> {
    let launchers = [tool::OPEN_MPI, tool::MPICH];
    let missing: Vec<String> = launchers.into_iter().filter_map(tool::install_program).collect();
    for (package, tests) in [("comm", "mpi::"), ("rowmill", "processes::")] {
        let mut tests = cargo(&["test", "--release", "-p", package, "--test", "it", tests]);
        command::run(tests.env("ROWMILL_PROCESSES", "full"))?;
    }
    Ok(if missing.is_empty() { "under both launchers".to_owned() } else { missing.join("; ") })
}

/// Runs the property tests with many more cases than the everyday run.
pub fn run_property_tests() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "data", "-p", "device"]);
    command::run(tests.env("PROPTEST_CASES", CASES).env("ROWMILL_SHAPES", SHAPES))?;
    Ok(format!("{CASES} cases a property, {SHAPES} random shapes a GPU kernel"))
}

/// Removes the guards of every GPU kernel one at a time and expects a test to fail each time.
pub fn remove_guards() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "device", "--test", "it", "mutation::"]);
    command::run(tests.env("ROWMILL_MUTATION", "full"))?;
    Ok("every guard is missed, or listed in crates/device/survivors.tsv".to_owned())
}

/// Runs each GPU kernel on the emulator under the sanitizers of the C++ compiler, and the
/// operations of the CPU under Rust's AddressSanitizer. The run under AddressSanitizer also checks
/// every part of a shared slice.
pub fn run_sanitizers() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "device", "--test", "it", "sanitizers::"]);
    command::run(tests.env("ROWMILL_SANITIZERS", "full"))?;
    // With an explicit target, RUSTFLAGS do not apply to build scripts and macros.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = ["test", "--release", "-p", "device", "--lib", "--tests", "--target", &target];
    let mut tests = cargo(&words);
    tests.args(["--target-dir", "target/address", "--", "--skip", "cuda"]);
    // A stable compiler contains the sanitizer's library, but it accepts the sanitizer's flag only
    // with RUSTC_BOOTSTRAP.
    tests.env("RUSTC_BOOTSTRAP", "1").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    tests.env("RUSTFLAGS", "-Zsanitizer=address -Cdebug-assertions");
    command::run(&mut tests)?;
    Ok("no reports of AddressSanitizer or UndefinedBehaviorSanitizer".to_owned())
}

/// Runs the long cases of the tests of `rowmill`: every configuration under a memory limit, every
/// ready-made plan against its prediction, twenty kills, and others. Then runs those of the
/// trainer: every plan with every optimizer and every schedule on threads and on processes, and
/// random runs that fail. Then kills the hub twenty times, and sends it rows of a thousand hosts.
/// At the end, searched plans are compared with heuristics on random cases.
pub fn run_long_tests() -> Result<String, Error> {
    let missing = tool::install_program(tool::OPEN_MPI);
    let folder = tree::root().join("target/venv-capture");
    let python = create_environment(&folder, &CAPTURE_PACKAGES)?;
    let run = |package: &str, arguments: &[&str]| {
        let mut tests = cargo(&["test", "--release", "-p", package, "--test", "it"]);
        tests.args(arguments).env("ROWMILL_LONG", "1").env("ROWMILL_TORCH_PYTHON", &python);
        command::run(&mut tests)
    };
    // The memory limit applies to all tests of a process together, so these tests run one at a
    // time.
    run("rowmill", &["memory::", "--", "--test-threads=1"])?;
    run("rowmill", &["--", "--skip", "memory::"])?;
    run("train", &[])?;
    run("plan", &["--", "--skip", "comparison::"])?;
    run("hub", &["--", "kill::", "load::", "orders::", "--test-threads=1"])?;
    let mut plans = cargo(&["test", "--release", "-p", "plan", "--test", "it", "comparison::"]);
    command::run(plans.env("ROWMILL_PLAN_CASES", PLAN_CASES))?;
    Ok(missing.unwrap_or_else(|| "no long case fails".to_owned()))
}

/// Predicts a third of the changes of the recorded evidence, then makes these changes and measures
/// them. The stage also compares remedies of the recorded suite with their predictions.
pub fn check_evidence() -> Result<String, Error> {
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

/// Damages prepared data, checkpoints and the traces of the fixtures at more places than the
/// everyday run.
pub fn damage_files() -> Result<String, Error> {
    let damaged = |package: &str, test: &str| {
        let mut tests = cargo(&["test", "--release", "-p", package, "--test", "it", test]);
        command::run(tests.env("ROWMILL_CORRUPTION", "full"))
    };
    damaged("train", "damage")?;
    let weights = "no flipped bit leads to other weights";
    let traces = fixtures_folder(&tree::root()).join("traces");
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
