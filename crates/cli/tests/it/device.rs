//! Tests of `rowmill doctor device` with a stub of the GPU driver and without a driver, and of
//! `--device` in commands that compute a model.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use device::backend::SOURCES;
use device::cuda::{LibraryVersion, nvrtc};
use serde_json::Value;
use testkit::ProgramOutput;

use crate::fixture::Place;

/// Runs `doctor device` with `folder` as the first folder that the linker searches, as the folder
/// of Python packages and as the user's home.
fn doctor(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut rowmill = Command::new(env!("CARGO_BIN_EXE_rowmill"));
    rowmill.args(["doctor", "device"]).args(words).env("LD_LIBRARY_PATH", folder);
    rowmill.env("ROWMILL_STUB", folder.join("calls")).env("HOME", folder);
    for unset in ["ROWMILL_CUDA_LIBRARIES", "ROWMILL_KERNELS", "XDG_CACHE_HOME", "CONDA_PREFIX"] {
        rowmill.env_remove(unset);
    }
    let output = rowmill.env("VIRTUAL_ENV", folder.join("venv")).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Returns the exit code and the JSON output of `doctor device`.
fn diagnosis(folder: &Path) -> (Option<i32>, Value) {
    let (code, text) = doctor(folder, &["--format", "json"]);
    (code, serde_json::from_str(&text).unwrap())
}

/// Compiles a stub library from the tests of the crate `device`. Returns false without a C
/// compiler.
fn library(path: &Path, source: &str, flags: &[&str]) -> bool {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda");
    testkit::compiler::compile_library(path, &sources.join(source), flags, "a stub of CUDA")
}

/// Puts a stub of the GPU driver, which only answers queries, into `folder`. Returns false without
/// a C compiler.
fn stub(folder: &Path) -> bool {
    ["libcuda.so", "libcuda.so.1"].iter().all(|name| library(&folder.join(name), "stub.c", &[]))
}

#[test]
fn gpus_are_listed_or_their_absence_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (code, found) = diagnosis(folder.path());
    // On a machine with a GPU, the GPU is listed instead of an explanation.
    if code == Some(1) {
        let problem = found["problem"].as_str().unwrap();
        assert!(problem.contains("driver") || problem.contains("cu"), "{found}");
        assert!(found["cure"].is_string() && found["devices"].as_array().unwrap().is_empty());
    }
    if !stub(folder.path()) {
        return;
    }
    let (code, text) = doctor(folder.path(), &[]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "cuda:0",
        "stub, 0.0 GiB of 0.0 GiB free",
        "compute capability 9.0",
        "227 KiB of shared memory",
        "0 of 11 for sm_90a",
        "NVRTC is needed",
        "CUDA 13.0",
    ] {
        // The table may break long lines at spaces, so spaces are normalized.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Returns what the diagnosis reports about a library: its path in `folder`, its version, and why
/// other files are passed over.
fn library_found(found: &Value, folder: &Path, name: &str) -> (String, String, String) {
    let libraries = found["libraries"].as_array().unwrap();
    let library = libraries.iter().find(|library| library["library"] == name).unwrap();
    let path = library["path"].as_str().unwrap_or_default();
    let path = Path::new(path).strip_prefix(folder).map(|path| path.display().to_string());
    let others = library["passed_over"].to_string().replace(&folder.display().to_string(), "");
    (path.unwrap_or_default(), library["version"].as_str().unwrap_or_default().to_owned(), others)
}

#[test]
fn libraries_of_python_packages_are_reported_with_path_and_version() {
    let folder = tempfile::tempdir().unwrap();
    let folder = fs::canonicalize(folder.path()).unwrap();
    let packages = "venv/lib/python3.12/site-packages/nvidia";
    let path = |name: &str| folder.join(packages).join(name);
    let newest = path("cu14/lib/libnvrtc.so.14");
    let has_all = stub(&folder)
        && library(&newest, "stub_nvrtc.c", &["-DMAJOR=14"])
        && library(&path("cu13/lib/libnvrtc.so.13"), "stub_nvrtc.c", &[])
        && library(&path("cuda_nvrtc/lib/libnvrtc.so.12"), "stub_nvrtc.c", &["-DMAJOR=12"])
        && library(&path("cublas/lib/libcublasLt.so.13"), "stub_blas.c", &[])
        && library(&path("nccl/lib/libnccl.so.2"), "stub_nccl.c", &[]);
    if !has_all {
        return;
    }
    fs::write(path("cublas/lib/libcublasLt.so.14"), "not a library").unwrap();
    let (code, found) = diagnosis(&folder);
    assert_eq!(code, Some(0), "{found}");
    let check = |name: &str, expected: (&str, &str), passed_over: &[&str]| {
        let (path, version, others) = library_found(&found, &folder, name);
        let expected_path = format!("{packages}/{}", expected.0);
        assert_eq!((path, version), (expected_path, expected.1.to_owned()), "{found}");
        for part in passed_over {
            assert!(others.contains(part), "{part}: {others}");
        }
    };
    // One of the three versions requires a later driver, and another one is broken, so only the
    // third can be used.
    let of_nvrtc = [
        "cu14/lib/libnvrtc.so.14: is version 14.0, but the driver is for CUDA 13.0",
        "cu13/lib/libnvrtc.so.13: has no function nvrtcVersion",
    ];
    check("NVRTC", ("cuda_nvrtc/lib/libnvrtc.so.12", "12.0"), &of_nvrtc);
    check("cuBLASLt", ("cublas/lib/libcublasLt.so.13", "13.1.0"), &["file too short"]);
    check("NCCL", ("nccl/lib/libnccl.so.2", "2.27.5"), &[]);
    assert_eq!(found["libraries"][0]["version"], "CUDA 13.0");
    let (_, text) = doctor(&folder, &[]);
    assert!(text.contains("NVRTC passed over: ") && text.contains("2.27.5, "), "{text}");
}

#[test]
fn a_missing_library_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    if !stub(folder.path()) {
        return;
    }
    fs::create_dir_all(folder.path().join("venv/lib/python3.12/site-packages/nvidia/nccl/lib"))
        .unwrap();
    let nccl = "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
    fs::write(folder.path().join(nccl), "").unwrap();
    let (code, found) = diagnosis(folder.path());
    // A GPU can be used even if the NCCL library is missing.
    assert_eq!(code, Some(0), "{found}");
    let nccl = &found["libraries"][3];
    assert_eq!((&nccl["library"], &nccl["version"]), (&"NCCL".into(), &Value::Null));
    // The machine that runs the tests may have a usable NCCL library elsewhere, so only the message
    // about this file is checked.
    let problem = nccl["problem"].as_str().unwrap();
    assert!(
        problem.contains("NCCL cannot be used: ") && problem.contains("libnccl.so.2"),
        "{found}"
    );
}

#[test]
fn a_driver_that_lacks_a_function_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("other.c");
    fs::write(&source, "int cuInit(unsigned flags) { return 0; }").unwrap();
    let source = source.to_str().unwrap();
    if !["libcuda.so", "libcuda.so.1"]
        .iter()
        .all(|name| library(&folder.path().join(name), source, &[]))
    {
        return;
    }
    let (code, found) = diagnosis(folder.path());
    let expected =
        "libcuda.so.1 has no function cuCtxSetCurrent: its version is too old or too new";
    assert_eq!((code, found["problem"].as_str()), (Some(1), Some(expected)));
    assert!(found["cure"].as_str().unwrap().contains("CUDA 12 or 13"), "{found}");
}

#[test]
fn a_device_that_is_not_there_is_refused_before_anything_is_read() {
    let place = Place::new();
    for words in [
        "train job.toml --train train.csv --run run --device cuda:99",
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

/// Puts compiled kernels for the stub's device into the kernel folder of the test.
fn store_kernels(place: &Place) {
    let version = LibraryVersion { major: 13, minor: 0, patch: None };
    for &source in SOURCES {
        nvrtc::store(&place.path(""), source, "sm_90a", b"code", version).unwrap();
    }
}

#[test]
fn each_process_of_a_host_uses_its_own_gpu() {
    let place = Place::new();
    if !stub(&place.path("")) {
        return;
    }
    store_kernels(&place);
    // The stub's devices have too little memory, so every run ends before its first step.
    let check = |local_rank: &str, device: &str, expected: &str, shares: bool| {
        let words = format!(
            "train job.toml --train train.csv --run run --transport in_process -v --device {device}"
        );
        let mut command = place.command(&words);
        for (name, value) in [
            ("OMPI_COMM_WORLD_RANK", local_rank),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local_rank),
            ("ROWMILL_STUB_DEVICES", "2"),
        ] {
            command.env(name, value);
        }
        command.env("LD_LIBRARY_PATH", place.path("")).env("ROWMILL_KERNELS", place.path(""));
        let ran = ProgramOutput::collect(command.env("ROWMILL_STUB", place.path("calls")));
        let device = format!("device: {expected}\n");
        assert!(ran.stderr.contains(&device), "{local_rank}: {expected}\n{}", ran.stderr);
        let note = "more processes on this host than its 2 GPUs: local rank 2 shares cuda:0";
        assert_eq!(ran.stderr.contains(note), shares, "{}", ran.stderr);
    };
    check("0", "cuda", "stub", false);
    check("1", "cuda", "stub 1", false);
    check("2", "cuda", "stub", true);
    check("3", "cuda", "stub 1", false);
    check("0", "cuda:1", "stub 1", false);
}

#[test]
fn kernels_without_a_folder_or_in_a_shared_one_are_refused() {
    let place = Place::new();
    let run = |variables: &[(&str, &Path)]| {
        let mut command = place.command("train job.toml --train train.csv --device emulated");
        for unset in ["HOME", "XDG_CACHE_HOME", "ROWMILL_KERNELS"] {
            command.env_remove(unset);
        }
        command.envs(variables.iter().copied());
        ProgramOutput::collect(&mut command)
    };
    let ran = run(&[]);
    let expected = "ROWMILL_KERNELS: expected a folder for compiled kernels, or HOME";
    assert!(ran.code == Some(2) && ran.stderr.contains(expected), "{}", ran.stderr);
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    let ran = run(&[("ROWMILL_KERNELS", &shared)]);
    for part in ["shared: other users may write it (mode 777)", "hint: ", "chmod go-w"] {
        assert!(ran.code == Some(2) && ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

#[test]
fn tables_that_do_not_fit_the_gpu_are_refused_with_both_numbers_and_what_would_fit() {
    let place = Place::new();
    // The stub is a driver with a GPU that has 1000 free bytes. The kernels count as compiled
    // before.
    if !stub(&place.path("")) {
        return;
    }
    store_kernels(&place);
    let words = "train job.toml --train train.csv --run run --device cuda";
    let mut command = place.command(words);
    command.env("LD_LIBRARY_PATH", place.path("")).env("ROWMILL_KERNELS", place.path(""));
    let ran = ProgramOutput::collect(command.env("ROWMILL_STUB", place.path("calls")));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for part in ["at most 1000 B free of 2.0 KiB on cuda", "activations", "hint: "] {
        assert!(ran.stderr.contains(part), "{part}\n{}", ran.stderr);
    }
    assert!(place.names("run").is_empty());
}

/// Returns the losses of all intervals that a run logs.
fn losses(ran: &ProgramOutput) -> Vec<f64> {
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

/// Returns whether kernels can be emulated.
fn can_emulate() -> bool {
    testkit::compiler::has_cxx("GPU kernels, emulated")
}

/// Runs the binary with the kernels that other tests have compiled.
fn emulating(place: &Place, words: &str) -> ProgramOutput {
    let kernels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let output = place.command(words).env("ROWMILL_KERNELS", kernels).output().unwrap();
    let ran = ProgramOutput::from(output);
    assert_eq!(ran.code, Some(0), "rowmill {words}\n{}\n{}", ran.stdout, ran.stderr);
    ran
}

/// Compares training on the emulated GPU with training on the CPU. Most steps use SGD. Adagrad
/// divides by the gradients, so sums in another order cause visible differences after some steps.
/// Even three ranks on a CPU then differ by up to 0.2 % from one. Only the first steps with Adagrad
/// are compared.
#[test]
fn steps_on_the_emulated_gpu_are_those_of_the_cpu() {
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
    let intervals = if testkit::has_time("forty of sixty steps") { 6 } else { 2 };
    let steps = format!("--set steps={} --set log_every=10", 10 * intervals);
    let apart = check("sgd", &format!("{sgd} {steps}"), intervals);
    assert!(apart.abs() < 1e-5, "{apart}");
    check("adagrad", "--set steps=5 --set log_every=1", 5);
}

/// Runs the whole quickstart on few rows. The predicted change and the report must also be present.
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

fn auc(ran: &ProgramOutput) -> f64 {
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
