//! Provides hints for devices and NVIDIA libraries that cannot be used.

use device::cuda::DriverError;

/// Returns the hint for a device that cannot be used.
pub fn suggest_cure(error: &DriverError) -> &'static str {
    match error {
        DriverError::NoDriver { .. } => {
            "install NVIDIA's driver, or let the linker find it (LD_LIBRARY_PATH)"
        }
        DriverError::NoFunction { .. } => {
            "install a driver for CUDA 12 or 13, and remove its stubs from LD_LIBRARY_PATH"
        }
        DriverError::NoTf32 => "leave --tf32 out, or name a GPU with --device cuda",
        DriverError::NoDevice { .. } => "let this process see a GPU (CUDA_VISIBLE_DEVICES)",
        DriverError::NoLibrary { library, .. } => suggest_library_cure(library),
        DriverError::Cache { .. } => {
            "name a folder of your own in ROWMILL_KERNELS that nobody else may write (chmod go-w)"
        }
        DriverError::Compile { .. } => "name a C++ compiler in CXX, or fix the compiler error",
        _ => "see what nvidia-smi says",
    }
}

/// Returns the hint for a library that is missing or cannot be used.
pub fn suggest_library_cure(library: &str) -> &'static str {
    match library {
        "NVRTC" => {
            "install NVRTC (pip install nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12 for a driver \
             of CUDA 12), or name its folder in ROWMILL_CUDA_LIBRARIES"
        }
        "cuBLASLt" => {
            "install cuBLASLt (pip install nvidia-cublas, or nvidia-cublas-cu12 for a driver of \
             CUDA 12), or name its folder in ROWMILL_CUDA_LIBRARIES"
        }
        _ => "nothing needs to be done: no command uses it yet",
    }
}
