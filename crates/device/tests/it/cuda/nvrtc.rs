//! Compiles every kernel with NVIDIA's own compiler, which works without a GPU. `cargo xtask
//! kernels` runs this test with the library's folder in `ROWMILL_CUDA_LIBRARIES`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use device::backend::SOURCES;
use device::cuda::nvrtc::{self, Nvrtc};
use device::cuda::{KernelSource, LibraryRoots, LibrarySearch, LibraryVersion};

/// The architectures of T4, A100, L4, H100, B200 and RTX 50, in this order. The variable
/// `ROWMILL_ARCHITECTURES` replaces the list.
const ARCHITECTURES: &str = "sm_75 sm_80 sm_89 sm_90a sm_100 sm_120";

/// A source compiled for one architecture, with the registers and memory that its kernels use.
struct Image {
    source: KernelSource,
    architecture: String,
    code: Vec<u8>,
    usage: Vec<nvrtc::Usage>,
}

/// Compiles every kernel source for one architecture.
fn compile_all(compiler: &Nvrtc, architecture: &str) -> Vec<Image> {
    let compile = |&source: &KernelSource| {
        let compiled = compiler.compile(source, architecture);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
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
    let Some(folders) = std::env::var_os("ROWMILL_CUDA_LIBRARIES") else {
        let need = "NVRTC in ROWMILL_CUDA_LIBRARIES, which `cargo xtask kernels` installs";
        testkit::skip("kernels compiled for each GPU", need);
        return;
    };
    // Only the named folder is searched, because `cargo xtask kernels` compares the register
    // counts of one version of NVRTC.
    let named = std::env::split_paths(&folders).collect();
    let search = LibrarySearch::new(&LibraryRoots { named, ..LibraryRoots::default() });
    let compiler = Nvrtc::open(&search, None).unwrap();
    let (path, version) = compiler.report().used.unwrap();
    assert!(std::env::split_paths(&folders).any(|folder| path.starts_with(folder)), "{path:?}");
    let out = std::env::var_os("ROWMILL_KERNELS").map(PathBuf::from);
    let architectures = std::env::var("ROWMILL_ARCHITECTURES");
    let architectures = architectures.as_deref().unwrap_or(ARCHITECTURES);
    // Architectures are compiled in parallel, and the sources of one architecture in sequence.
    let images: Vec<Image> = std::thread::scope(|scope| {
        let compiler = &compiler;
        let compile = |architecture| scope.spawn(move || compile_all(compiler, architecture));
        let threads: Vec<_> = architectures.split(' ').map(compile).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if let Some(out) = &out {
        write(out, &images, version);
    }
    let source =
        KernelSource { name: "cuda/mistake.cu", text: "KERNEL(x, u32, 32) { float y = ; }" };
    let architecture = architectures.split(' ').next().unwrap();
    let error = compiler.compile(source, architecture).unwrap_err().to_string();
    assert!(error.contains("cuda/mistake.cu(1)") && error.contains("expected"), "{error}");
}

/// Writes each image to a file, and two tables. `images.tsv` names the file of each source and
/// architecture, and `usage.tsv` lists the resources of each kernel.
fn write(out: &Path, images: &[Image], version: LibraryVersion) {
    let mut names = String::from("source\tarchitecture\tfile\n");
    let mut table = String::from("architecture\tkernel\tregisters\tshared_bytes\tspill_bytes\n");
    for Image { source, architecture, code, usage } in images {
        let path = nvrtc::store(out, *source, architecture, code, version).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        writeln!(names, "{}\t{architecture}\t{file}", source.name).unwrap();
        for nvrtc::Usage { kernel, registers, shared_bytes, spill_bytes } in usage {
            let numbers = format!("{registers}\t{shared_bytes}\t{spill_bytes}");
            writeln!(table, "{architecture}\t{kernel}\t{numbers}").unwrap();
        }
    }
    std::fs::write(out.join("images.tsv"), names).unwrap();
    std::fs::write(out.join("usage.tsv"), table).unwrap();
}
