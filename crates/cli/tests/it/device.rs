//! `rowmill doctor device`, with a GPU's driver that only answers, and without; `--device` of the
//! commands that compute a model.

use std::fs;
use std::path::Path;
use std::process::Command;

use device::backend::SOURCES;
use device::cuda::nvrtc;
use serde_json::Value;

use crate::fixture::{Place, Ran};

/// The binary with `folder` where the linker looks first.
fn doctor(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut rowmill = Command::new(env!("CARGO_BIN_EXE_rowmill"));
    rowmill.args(["doctor", "device"]).args(words).env("LD_LIBRARY_PATH", folder);
    let output = rowmill.env("ROWMILL_STUB", folder.join("calls")).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Puts a driver that only answers into `folder`; whether there is a C compiler to make it.
fn stub(folder: &Path) -> bool {
    library(folder, &Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda/stub.c"))
}

fn library(folder: &Path, source: &Path) -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    for name in ["libcuda.so", "libcuda.so.1"] {
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.join(name)).arg(source);
        let Ok(status) = command.status() else {
            println!("SKIPPED a driver that only answers: no C compiler (CC) here");
            return false;
        };
        assert!(status.success());
    }
    true
}

#[test]
fn a_gpu_is_listed_and_its_absence_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = doctor(folder.path(), &["--format", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    // Where there is a GPU, it is listed instead.
    if code == Some(1) {
        let problem = found["problem"].as_str().unwrap();
        assert!(problem.contains("driver") || problem.contains("cu"), "{text}");
        assert!(found["cure"].is_string() && found["devices"].as_array().unwrap().is_empty());
    }
    if !stub(folder.path()) {
        return;
    }
    let (code, text) = doctor(folder.path(), &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("cuda:0") && text.contains("stub, 0.0 GiB of 0.0 GiB free"), "{text}");
}

#[test]
fn a_driver_that_lacks_a_function_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("other.c");
    fs::write(&source, "int cuInit(unsigned flags) { return 0; }").unwrap();
    if !library(folder.path(), &source) {
        return;
    }
    let (code, text) = doctor(folder.path(), &["--format", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    let expected =
        "libcuda.so.1 has no function cuCtxSetCurrent: its version is too old or too new";
    assert_eq!((code, found["problem"].as_str()), (Some(1), Some(expected)));
    assert!(found["cure"].as_str().unwrap().contains("CUDA 13"), "{text}");
}

#[test]
fn a_device_that_is_not_there_is_refused_before_anything_is_read() {
    let place = Place::new();
    for words in [
        "train job.toml --train train.csv --run run --device cuda:99",
        "bench train --config job.toml --device cuda:99",
        "quickstart --device cuda:99",
    ] {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(2), "{words}\n{}", ran.stderr);
        for part in ["error: --device cuda:99: ", "rowmill doctor device", "hint: "] {
            assert!(ran.stderr.contains(part), "{words}: {part}\n{}", ran.stderr);
        }
    }
    assert!(place.names("run").is_empty() && place.names("rowmill-").is_empty());
    let ran = place.run("train job.toml --train train.csv --device emulated --tf32");
    let refused = "--device emulated: only cuda and cuda:N multiply in TF32";
    assert!(ran.code == Some(2) && ran.stderr.contains(refused), "{}", ran.stderr);
    let ran = place.run("train job.toml --train train.csv --device gpu");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("expected cpu, cuda, cuda:N or emulated"), "{}", ran.stderr);
}

#[test]
fn tables_that_do_not_fit_the_gpu_are_refused_with_both_numbers_and_what_would_fit() {
    let place = Place::new();
    // A driver that answers, of a GPU with 1000 bytes free, and kernels that were compiled before.
    if !stub(&place.path("")) {
        return;
    }
    for &source in SOURCES {
        fs::write(place.path(&nvrtc::image_name(source, "sm_90a")), "code").unwrap();
    }
    let words = "train job.toml --train train.csv --run run --device cuda";
    let mut command = place.command(words);
    command.env("LD_LIBRARY_PATH", place.path("")).env("ROWMILL_KERNELS", place.path(""));
    let ran = Ran::of(&command.env("ROWMILL_STUB", place.path("calls")).output().unwrap());
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for part in ["at most 1000 B free of 2.0 KiB on cuda:0", "activations", "hint: "] {
        assert!(ran.stderr.contains(part), "{part}\n{}", ran.stderr);
    }
    assert!(place.names("run").is_empty());
}

/// Losses of the intervals that a run logs.
fn losses(ran: &Ran) -> Vec<f64> {
    ran.lines().iter().filter(|line| line["event"] == "interval").map(loss_of).collect()
}

fn loss_of(line: &Value) -> f64 {
    line["loss"].as_f64().unwrap()
}

fn close(got: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < bound * expected.abs(), "expected {expected}, got {got}");
    }
}

/// Whether kernels can be emulated here; says so where they cannot.
fn can_emulate() -> bool {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let found = Command::new(&compiler).arg("--version").output().is_ok();
    if !found {
        println!("SKIPPED a GPU's kernels, emulated: no C++ compiler (CXX) here");
    }
    found
}

/// The binary, with the kernels that other tests have compiled.
fn emulating(place: &Place, words: &str) -> Ran {
    let kernels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let output = place.command(words).env("ROWMILL_KERNELS", kernels).output().unwrap();
    let ran = Ran::of(&output);
    assert_eq!(ran.code, Some(0), "rowmill {words}\n{}\n{}", ran.stdout, ran.stderr);
    ran
}

/// Under SGD, whose steps follow the gradient: the ready-made Adagrad divides by it, so that
/// another order of sums shows after some steps (three ranks of the CPU are up to 0.2 % from one
/// then). Its first steps are compared.
#[test]
fn sixty_steps_on_the_emulated_gpu_are_those_of_the_cpu() {
    if !can_emulate() {
        return;
    }
    let place = Place::new();
    let check = |name: &str, more: &str, intervals: usize| {
        let train = |device: &str| {
            let words = format!("train adult-income --synthetic 20000 {more} --format json");
            emulating(&place, &format!("{words} --run {device}-{name} --device {device}"))
        };
        let (cpu, emulated) = (train("cpu"), train("emulated"));
        assert_eq!(losses(&cpu).len(), intervals);
        close(&losses(&emulated), &losses(&cpu), 1e-5);
        auc(&emulated) - auc(&cpu)
    };
    let sgd = "--set optimizer.dense.kind=sgd --set optimizer.sparse.kind=sgd \
               --set optimizer.dense.learning_rate=0.1 --set optimizer.sparse.learning_rate=0.1";
    let apart = check("sgd", &format!("{sgd} --set steps=60 --set log_every=10"), 6);
    assert!(apart.abs() < 1e-5, "{apart}");
    check("adagrad", "--set steps=5 --set log_every=1", 5);
}

/// The whole loop, on few rows: the predicted change and the report are there too.
#[test]
fn quickstart_runs_on_the_emulated_gpu() {
    if !can_emulate() {
        return;
    }
    let place = Place::new();
    let ran = emulating(&place, "quickstart --seconds 2 --device emulated --format json");
    let last = ran.last();
    for path in ["checkpoint", "trace", "report", "curves", "text", "config"] {
        assert!(place.path(last[path].as_str().unwrap()).exists(), "{path}: {last}");
    }
    assert!(last["auc"].as_f64().unwrap() > 0.4, "{last}");
    let eval = emulating(&place, "eval rowmill-quickstart/run --format json");
    let auc_of_cpu = eval.last()["evaluation"]["auc"].as_f64().unwrap();
    assert!((auc_of_cpu - last["auc"].as_f64().unwrap()).abs() < 1e-4, "{last}");
}

fn auc(ran: &Ran) -> f64 {
    ran.last()["evaluation"]["auc"].as_f64().unwrap()
}

#[test]
fn a_checkpoint_of_one_device_loads_on_the_other() {
    if !can_emulate() {
        return;
    }
    let place = Place::new();
    let train = |words: &str| {
        let words = format!("train job.toml --train train.csv --format json {words}");
        emulating(&place, &words)
    };
    let whole = train("--run whole --set steps=60 --set log_every=10");
    train("--run run --set steps=30 --set log_every=10 --device emulated");
    let rest = train("--run run --set steps=60 --set log_every=10 --resume");
    close(&losses(&rest), &losses(&whole)[3..], 1e-4);
    let evaluate = |device: &str| {
        let words = format!("eval run --format json --device {device}");
        emulating(&place, &words).last()["evaluation"]["loss"].as_f64().unwrap()
    };
    close(&[evaluate("emulated")], &[evaluate("cpu")], 1e-6);
    let score = |device: &str| -> Vec<f64> {
        let ran = emulating(&place, &format!("score run train.csv --device {device}"));
        ran.stdout.lines().map(|line| line.parse().unwrap()).collect()
    };
    let (emulated, cpu) = (score("emulated"), score("cpu"));
    assert!(cpu.len() > 3000);
    close(&emulated, &cpu, 1e-5);
}
