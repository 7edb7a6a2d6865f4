//! `rowmill doctor device`, with a GPU's driver that only answers, and without.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The binary with `folder` where the linker looks first.
fn doctor(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut rowmill = Command::new(env!("CARGO_BIN_EXE_rowmill"));
    rowmill.args(["doctor", "device"]).args(words).env("LD_LIBRARY_PATH", folder);
    let output = rowmill.env("ROWMILL_STUB", folder.join("calls")).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda/stub.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    for name in ["libcuda.so", "libcuda.so.1"] {
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.path().join(name)).arg(&source);
        let Ok(status) = command.status() else {
            println!("SKIPPED a driver that only answers: no C compiler (CC) here");
            return;
        };
        assert!(status.success());
    }
    let (code, text) = doctor(folder.path(), &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("cuda:0") && text.contains("stub, 0.0 GiB of 0.0 GiB free"), "{text}");
}
