//! Stages that are slow or heavy: licences, comparison with the Python tools, long property tests.

use std::path::Path;
use std::process::Command;

use crate::ci::{cargo, tool};
use crate::command;
use crate::error::Error;
use crate::tree;

/// What the traces must open in, pinned: the tool's launch names and rounding change between
/// versions.
const PACKAGES: [&str; 2] = ["traceinsight==0.6.1", "pandas<3"];

/// Cases per property; the everyday run has the library's default of 256.
const CASES: &str = "20000";

pub fn licences() -> Result<String, Error> {
    tool::install_subcommand("deny", "cargo-deny")?;
    command::run(&mut cargo(&["deny", "check", "licenses", "bans"])).map(|()| String::new())
}

pub fn compare() -> Result<String, Error> {
    let root = tree::root();
    let environment = root.join("target/venv-traceinsight");
    let python = environment.join("bin/python");
    if !python.exists() {
        command::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    command::run(Command::new(&python).args(pip).args(PACKAGES))?;
    command::run(&mut cargo(&["build", "--release"]))?;
    let traces = trace(&root)?;
    let mut script = Command::new(&python);
    script.arg(root.join("bench/compare/trace_opens.py")).arg(&traces);
    command::run(script.env("HTA_DISABLE_NS_ROUNDING", "1"))?;
    Ok(format!("opens with {}", PACKAGES.join(" and ")))
}

/// Trains a few steps on made data with tracing on; the folder of the traces.
fn trace(root: &Path) -> Result<std::path::PathBuf, Error> {
    let folder = root.join("target/compare");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    }
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    let mut train = Command::new(root.join("target/release/rowmill"));
    train.args(["train", "dlrm-criteo-kaggle", "--synthetic", "65536", "--run", "run"]);
    train.args(["--set", "rows_cap=10000", "--set", "training.steps=30"]);
    train.args(["--trace", "trace", "--trace-steps", "10..20"]);
    command::run(train.current_dir(&folder))?;
    Ok(folder.join("trace"))
}

pub fn fuzz() -> Result<String, Error> {
    let mut tests = cargo(&["test", "--release", "-p", "data", "-p", "device"]);
    command::run(tests.env("PROPTEST_CASES", CASES)).map(|()| format!("{CASES} cases a property"))
}
