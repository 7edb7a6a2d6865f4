//! Reports which of NVIDIA's libraries this machine has, without computing anything with them.
#![expect(unsafe_code, reason = "calls NCCL to query its version; decision 0002")]

use std::ffi::c_int;

use super::blas::CublasLt;
use super::error::DriverError;
use super::libraries::{CudaLibrary, LibrarySearch};
use super::loader::{LibraryReport, LibraryVersion, SharedLibrary, function_table, open_first};
use super::nvrtc::Nvrtc;

function_table! {
    NcclFunctions {
        ncclGetVersion: fn(*mut c_int) -> c_int;
    }
}

/// Opens NVRTC, cuBLASLt and NCCL by the same search as a device whose driver supports CUDA
/// `driver`.
#[must_use]
pub fn inspect_libraries(
    search: &LibrarySearch,
    driver: Option<LibraryVersion>,
) -> [LibraryReport; 3] {
    let nvrtc = Nvrtc::open(search, driver).map(|nvrtc| nvrtc.report());
    let blas = CublasLt::open(search, driver).map(|blas| blas.report());
    // No CUDA version is passed, because NCCL's version numbers are unrelated to those of CUDA.
    let nccl = open_first(search, CudaLibrary::Nccl, None, nccl_version);
    let nccl = nccl.map(|nccl| nccl.report(CudaLibrary::Nccl));
    [
        report_or_problem(CudaLibrary::Nvrtc, nvrtc),
        report_or_problem(CudaLibrary::CublasLt, blas),
        report_or_problem(CudaLibrary::Nccl, nccl),
    ]
}

fn report_or_problem(
    library: CudaLibrary,
    opened: Result<LibraryReport, DriverError>,
) -> LibraryReport {
    opened.unwrap_or_else(|error| {
        let problem = Some(error.to_string());
        let rejected = match error {
            DriverError::NoLibrary { rejected, .. } => rejected,
            _ => Vec::new(),
        };
        LibraryReport { library: library.name(), used: None, rejected, problem }
    })
}

fn nccl_version(library: &SharedLibrary) -> Result<(NcclFunctions, LibraryVersion), String> {
    let functions = NcclFunctions::load(library)?;
    let mut number = 0;
    // SAFETY: the pointer refers to `number`, a live integer that the call writes.
    let code = unsafe { (functions.ncclGetVersion)(&raw mut number) };
    if code != 0 {
        return Err(format!("ncclGetVersion: code {code}"));
    }
    // Examples of the encoding: 2804 is 2.8.4; 22705 is 2.27.5.
    let number = number as u32;
    let major_unit = if number < 10_000 { 1_000 } else { 10_000 };
    let (major, minor) = (number / major_unit, number % major_unit / 100);
    Ok((functions, LibraryVersion { major, minor, patch: Some(number % 100) }))
}
