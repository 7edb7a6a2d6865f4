//! Every kernel through NVIDIA's own compiler, which needs no GPU: `cargo xtask kernels` runs this
//! with the library's folder in `ROWMILL_CUDA_LIBRARIES`.

use std::fmt::Write;
use std::path::PathBuf;

use device::backend::SOURCES;
use device::cuda::nvrtc::{self, Nvrtc};
use device::cuda::{KernelSource, LibraryRoots, LibrarySearch};

/// Those of A100, H100 and B200, unless `ROWMILL_ARCHITECTURES` names others.
const ARCHITECTURES: &str = "sm_80 sm_90a sm_100";

#[test]
fn every_kernel_compiles_for_every_gpu() {
    let Some(folders) = std::env::var_os("ROWMILL_CUDA_LIBRARIES") else {
        eprintln!(
            "SKIPPED: ROWMILL_CUDA_LIBRARIES has no NVRTC; `cargo xtask kernels` installs it"
        );
        return;
    };
    // That folder alone: `cargo xtask kernels` checks registers of one version.
    let named = std::env::split_paths(&folders).collect();
    let search = LibrarySearch::new(&LibraryRoots { named, ..LibraryRoots::default() });
    let compiler = Nvrtc::open(&search, None).unwrap();
    let (path, version) = compiler.report().used.unwrap();
    assert!(std::env::split_paths(&folders).any(|folder| path.starts_with(folder)), "{path:?}");
    let out = std::env::var_os("ROWMILL_KERNELS").map(PathBuf::from);
    let mut table = String::from("architecture\tkernel\tregisters\tshared_bytes\tspill_bytes\n");
    let architectures = std::env::var("ROWMILL_ARCHITECTURES");
    let architectures = architectures.as_deref().unwrap_or(ARCHITECTURES);
    for &source in SOURCES {
        for architecture in architectures.split(' ') {
            let compiled = compiler.compile(source, architecture);
            let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
            assert!(compiled.image.starts_with(b"\x7fELF"), "{}", source.name);
            let usage = nvrtc::usage(&compiled.log);
            let kernels = source.text.matches("\nKERNEL(").count();
            assert_eq!(usage.len(), kernels, "{}: {}", source.name, compiled.log);
            for nvrtc::Usage { kernel, registers, shared_bytes, spill_bytes } in usage {
                let numbers = format!("{registers}\t{shared_bytes}\t{spill_bytes}");
                writeln!(table, "{architecture}\t{kernel}\t{numbers}").unwrap();
            }
            if let Some(out) = &out {
                nvrtc::store(out, source, architecture, &compiled.image, version).unwrap();
            }
        }
    }
    if let Some(out) = &out {
        std::fs::write(out.join("usage.tsv"), table).unwrap();
    }
    let source =
        KernelSource { name: "cuda/mistake.cu", text: "KERNEL(x, u32, 32) { float y = ; }" };
    let architecture = architectures.split(' ').next().unwrap();
    let error = compiler.compile(source, architecture).unwrap_err().to_string();
    assert!(error.contains("cuda/mistake.cu(1)") && error.contains("expected"), "{error}");
}
