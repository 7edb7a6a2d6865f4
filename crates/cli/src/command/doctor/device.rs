//! The command `rowmill doctor device`, which lists GPUs and NVIDIA's libraries, or explains why
//! they cannot be used. The command also checks whether GPU kernels can be emulated.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ::device::Isa;
use ::device::backend::SOURCES;
use ::device::cuda::{
    CudaOptions, Driver, DriverError, LibraryReport, driver_version, inspect_libraries,
};
use serde::Serialize;

use setup::device_cure;
use setup::error::{EXIT_FAILED, Error};
use setup::render;
use setup::{Session, device};

/// The GPUs and libraries that were found, and what this CPU can do instead of a GPU.
#[derive(Serialize)]
struct DeviceDiagnosis {
    devices: Vec<CheckedGpu>,
    libraries: Vec<CheckedLibrary>,
    /// The folder in which compiled kernels are cached.
    kernels: Option<PathBuf>,
    /// The reason why no GPU can be used. `None` if a GPU can be used.
    problem: Option<String>,
    cure: Option<&'static str>,
    /// The method of this CPU for products of bf16 numbers: the instruction `vdpbf16ps`, or
    /// `widened`, which converts the numbers to f32.
    bf16_products: &'static str,
    /// The C++ compiler with which the emulator compiles GPU kernels.
    compiler: String,
    has_compiler: bool,
}

/// A GPU that the driver lists, with the state of its compiled kernels.
#[derive(Serialize)]
struct CheckedGpu {
    device: String,
    name: String,
    compute_capability: String,
    free_bytes: usize,
    total_bytes: usize,
    /// Largest size in bytes of the shared memory of a block.
    shared_bytes_max: usize,
    /// The architecture for which kernels are compiled, such as `sm_90a`.
    architecture: String,
    /// Number of source files of GPU kernels.
    sources: usize,
    /// Number of kernel source files that have been compiled for this device.
    compiled_sources: usize,
}

/// One of NVIDIA's libraries, with the file that is used or the reason why no file is used.
#[derive(Serialize)]
struct CheckedLibrary {
    library: &'static str,
    path: Option<PathBuf>,
    version: Option<String>,
    /// The reason why no file of this library can be used.
    problem: Option<String>,
    cure: Option<&'static str>,
    /// Files that were tried before the used one and that cannot be used.
    passed_over: Vec<String>,
}

impl CheckedLibrary {
    fn probe_driver() -> Self {
        let version = driver_version();
        let cure = version.as_ref().err().map(device_cure::suggest_cure);
        let problem = version.as_ref().err().map(ToString::to_string);
        let version = version.ok().map(|version| format!("CUDA {version}"));
        let (library, path, passed_over) = ("driver", None, Vec::new());
        Self { library, path, version, problem, cure, passed_over }
    }
}

impl From<LibraryReport> for CheckedLibrary {
    fn from(report: LibraryReport) -> Self {
        let LibraryReport { library, used, rejected, problem } = report;
        let cure = problem.is_some().then(|| device_cure::suggest_library_cure(library));
        let (path, version) = used.unzip();
        let version = version.map(|version| version.to_string());
        let passed_over = rejected.iter().map(ToString::to_string).collect();
        Self { library, path, version, problem, cure, passed_over }
    }
}

/// Runs `rowmill doctor device` and prints its result.
pub fn run(session: &Session) -> Result<ExitCode, Error> {
    let diagnosis = diagnose();
    session.console.report(&diagnosis, table)?;
    let is_well = diagnosis.problem.is_none();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn diagnose() -> DeviceDiagnosis {
    let options = device::cuda_options();
    let mut devices = Vec::new();
    let error = loop {
        match options.clone().and_then(|options| check_gpu(devices.len(), options)) {
            Ok(gpu) => devices.push(gpu),
            // Devices have consecutive numbers, so the first number without a device ends the list.
            Err(DriverError::NoDevice { count, .. }) if count > 0 => break None,
            Err(error) => break Some(error),
        }
    };
    let mut libraries = vec![CheckedLibrary::probe_driver()];
    if let Ok(options) = &options {
        let found = inspect_libraries(&options.libraries, driver_version().ok());
        libraries.extend(found.map(CheckedLibrary::from));
    }
    let compiler = device::compiler();
    let mut version = Command::new(&compiler);
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let has_compiler = version.status().is_ok_and(|status| status.success());
    let cure = error.as_ref().map(device_cure::suggest_cure);
    let problem = error.map(|error| error.to_string());
    let compiler = compiler.display().to_string();
    let kernels = options.ok().map(|options| options.cache);
    let bf16_products = Isa::detect().bf16_products().name();
    DeviceDiagnosis {
        devices,
        libraries,
        kernels,
        problem,
        cure,
        bf16_products,
        compiler,
        has_compiler,
    }
}

fn check_gpu(ordinal: usize, options: CudaOptions) -> Result<CheckedGpu, DriverError> {
    let driver = Driver::cuda(ordinal, options)?;
    let [free_bytes, total_bytes] = driver.memory()?.unwrap_or_default();
    let properties = driver.properties().unwrap_or_default();
    let [major, minor] = properties.compute_capability;
    Ok(CheckedGpu {
        device: format!("cuda:{ordinal}"),
        name: driver.name(),
        compute_capability: format!("{major}.{minor}"),
        free_bytes,
        total_bytes,
        shared_bytes_max: properties.shared_bytes_max,
        architecture: properties.architecture,
        sources: SOURCES.len(),
        compiled_sources: SOURCES.iter().filter(|source| driver.has_compiled(**source)).count(),
    })
}

fn table(diagnosis: &DeviceDiagnosis) -> String {
    let mut rows = Vec::new();
    for gpu in &diagnosis.devices {
        rows.extend(gpu_rows(gpu, diagnosis.kernels.as_deref()));
    }
    if let Some(problem) = &diagnosis.problem {
        rows.push(row("cuda", "wrong", problem.clone()));
    }
    for library in &diagnosis.libraries {
        let CheckedLibrary { library, path, version, problem, .. } = library;
        let path = path.as_ref().map(|path| format!(", {}", path.display())).unwrap_or_default();
        match (version, problem) {
            (Some(version), _) => rows.push(row(library, "ok", format!("{version}{path}"))),
            // The row of the device already shows this problem, so it is not repeated.
            (None, problem) if *problem == diagnosis.problem => {}
            (None, problem) => {
                let verdict = if *library == "NCCL" { "absent" } else { "wrong" };
                rows.push(row(library, verdict, problem.clone().unwrap_or_default()));
            }
        }
    }
    let products = match diagnosis.bf16_products {
        "widened" => "bf16 is widened and multiplied in f32",
        other => other,
    };
    rows.push(row("cpu", "ok", format!("products of bf16: {products}")));
    let (verdict, found) =
        if diagnosis.has_compiler { ("ok", "found") } else { ("wrong", "absent") };
    rows.push(row(
        "emulated",
        verdict,
        format!("C++ compiler {} (CXX): {found}", diagnosis.compiler),
    ));
    let mut text = render::grid(&["device", "", "found"], &rows);
    for library in &diagnosis.libraries {
        // If a library cannot be used, its problem already names the files that were tried.
        if library.problem.is_none() {
            for file in &library.passed_over {
                text += &format!("\n{} passed over: {file}", library.library);
            }
        }
        if let Some(cure) = library.cure.filter(|cure| Some(*cure) != diagnosis.cure) {
            text += &format!("\n→ {}: {cure}", library.library);
        }
    }
    if let Some(cure) = diagnosis.cure {
        text += &format!("\n→ {cure}");
    }
    text
}

fn gpu_rows(gpu: &CheckedGpu, kernels: Option<&Path>) -> [Vec<String>; 2] {
    let gib = |bytes: usize| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let CheckedGpu { name, compute_capability, architecture, sources, compiled_sources, .. } = gpu;
    let memory = format!("{} of {} free", gib(gpu.free_bytes), gib(gpu.total_bytes));
    let shared = gpu.shared_bytes_max / 1024;
    let about = format!(
        "{name}, {memory}, compute capability {compute_capability}, {shared} KiB of shared memory \
         for a block"
    );
    let needs = if compiled_sources == sources { "NVRTC is not needed" } else { "NVRTC is needed" };
    let folder = kernels.map(|folder| folder.display().to_string()).unwrap_or_default();
    let kernels =
        format!("{compiled_sources} of {sources} for {architecture} in {folder}: {needs}");
    [row(&gpu.device, "ok", about), row("compiled kernels", "", kernels)]
}

fn row(what: &str, verdict: &str, found: String) -> Vec<String> {
    vec![what.to_owned(), verdict.to_owned(), found]
}
