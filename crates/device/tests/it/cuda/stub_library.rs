//! A test of this program, run again with a stub of NVIDIA's library where the linker looks; also
//! for the tests of `train`, which include this file. Knows no kernel and no model.

use std::path::{Path, PathBuf};
use std::process::Command;

use device::backend::SOURCES;
use device::cuda::nvrtc;

/// Which libraries of NVIDIA's there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libraries {
    Driver,
    DriverAndBlas,
}

/// Runs the test `child` with the stub; the calls it made, or `None` without a C compiler.
pub fn calls(child: &str, libraries: Libraries) -> Option<Vec<String>> {
    let folder = format!("stub-{}", child.replace("::", "-"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("calls");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let mut wanted = vec![("stub.c", "libcuda.so.1"), ("stub.c", "libcuda.so")];
    if libraries == Libraries::DriverAndBlas {
        wanted.push(("stub_blas.c", "libcublasLt.so"));
    }
    for (source, library) in wanted {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda");
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.join(library));
        let Ok(status) = command.arg(sources.join(source)).status() else {
            eprintln!("SKIPPED: {} is not there, a C compiler (CC)", compiler.display());
            return None;
        };
        assert!(status.success(), "{status}");
    }
    let _ = std::fs::remove_file(&log);
    // Modules come from the cache: there is no NVRTC, and the stub reads none.
    for &source in SOURCES {
        std::fs::write(folder.join(nvrtc::image_name(source, "sm_90a")), "code").unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child, "--nocapture"]).env("LD_LIBRARY_PATH", &folder);
    let output = command.env("ROWMILL_STUB", &log).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect())
}
