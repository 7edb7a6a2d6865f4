//! Every kernel through NVIDIA's own compiler, which needs no GPU: `cargo xtask kernels` runs this
//! with the library's folder in `ROWMILL_NVRTC`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use device::backend::SOURCES;
use device::cuda::{KernelSource, nvrtc};

/// Those of T4, A100, L4, H100, B200 and RTX 50, unless `ROWMILL_ARCHITECTURES` names others.
const ARCHITECTURES: &str = "sm_75 sm_80 sm_89 sm_90a sm_100 sm_120";

/// A source's code for an architecture, and what its kernels use.
struct Image {
    source: KernelSource,
    architecture: String,
    code: Vec<u8>,
    usage: Vec<nvrtc::Usage>,
}

/// Compiles every source for an architecture.
fn compile_all(libraries: &Path, architecture: &str) -> Vec<Image> {
    let compile = |&source: &KernelSource| {
        let libraries = Some(libraries);
        let request = nvrtc::CompileRequest { source, architecture, libraries };
        let compiled = nvrtc::compile(&request).unwrap_or_else(|error| panic!("{error}"));
        assert!(compiled.image.starts_with(b"\x7fELF"), "{}", source.name);
        let usage = nvrtc::usage(&compiled.log);
        let kernels = source.text.matches("\nKERNEL(").count();
        assert_eq!(usage.len(), kernels, "{}: {}", source.name, compiled.log);
        Image { source, architecture: architecture.to_owned(), code: compiled.image, usage }
    };
    SOURCES.iter().map(compile).collect()
}

#[test]
fn every_kernel_compiles_for_every_gpu() {
    let Some(libraries) = std::env::var_os("ROWMILL_NVRTC").map(PathBuf::from) else {
        eprintln!("SKIPPED: ROWMILL_NVRTC is not set; `cargo xtask kernels` installs NVRTC");
        return;
    };
    let out = std::env::var_os("ROWMILL_KERNELS").map(PathBuf::from);
    let architectures = std::env::var("ROWMILL_ARCHITECTURES");
    let architectures = architectures.as_deref().unwrap_or(ARCHITECTURES);
    // The sources of an architecture one after the other, all architectures at once.
    let images: Vec<Image> = std::thread::scope(|scope| {
        let libraries = libraries.as_path();
        let compile = |architecture| scope.spawn(move || compile_all(libraries, architecture));
        let threads: Vec<_> = architectures.split(' ').map(compile).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if let Some(out) = &out {
        write(out, &images);
    }
    let source =
        KernelSource { name: "cuda/mistake.cu", text: "KERNEL(x, u32, 32) { float y = ; }" };
    let libraries = Some(libraries.as_path());
    let architecture = architectures.split(' ').next().unwrap();
    let request = nvrtc::CompileRequest { source, architecture, libraries };
    let error = nvrtc::compile(&request).unwrap_err().to_string();
    assert!(error.contains("cuda/mistake.cu(1)") && error.contains("expected"), "{error}");
}

/// Writes the code of each image, `images.tsv` with the file of each, and `usage.tsv`.
fn write(out: &Path, images: &[Image]) {
    let mut names = String::from("source\tarchitecture\tfile\n");
    let mut table = String::from("architecture\tkernel\tregisters\tshared_bytes\tspill_bytes\n");
    for Image { source, architecture, code, usage } in images {
        let name = nvrtc::image_name(*source, architecture);
        std::fs::write(out.join(&name), code).unwrap();
        writeln!(names, "{}\t{architecture}\t{name}", source.name).unwrap();
        for nvrtc::Usage { kernel, registers, shared_bytes, spill_bytes } in usage {
            let numbers = format!("{registers}\t{shared_bytes}\t{spill_bytes}");
            writeln!(table, "{architecture}\t{kernel}\t{numbers}").unwrap();
        }
    }
    std::fs::write(out.join("images.tsv"), names).unwrap();
    std::fs::write(out.join("usage.tsv"), table).unwrap();
}
