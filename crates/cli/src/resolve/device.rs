//! The device that `--device` names, opened, with its kernels compiled: what is missing is said
//! before anything is read or written.

use std::path::PathBuf;

use device::backend::Cuda;
use device::cuda::{
    Accuracy, BlockOrder, Checks, Driver, DriverError, Emulation, H100_SHARED_BYTES,
};

use schema::Bytes;

use super::Session;
use crate::args::{DeviceName, OnDevice};
use crate::error::Error;

/// Where a model is computed.
#[derive(Clone, Debug)]
pub enum ComputeDevice {
    /// On the host's cores.
    Cpu,
    /// By the kernels of a GPU, or of its emulation.
    Gpu(Driver),
}

impl ComputeDevice {
    /// Bytes free and bytes in all of a GPU; `None` of what has the host's memory.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where it does not answer.
    pub fn memory(&self, name: DeviceName) -> Result<Option<[Bytes; 2]>, Error> {
        let Self::Gpu(driver) = self else { return Ok(None) };
        let refused = |source| Error::NoDevice { name, source: Box::new(source) };
        let memory = driver.memory().map_err(refused)?;
        Ok(memory.map(|bytes| bytes.map(|bytes| Bytes(bytes as u64))))
    }

    /// Opens the device and compiles its kernels, or takes what an earlier run compiled.
    ///
    /// # Errors
    /// [`Error::NoDevice`] saying what is missing.
    pub fn open(on: OnDevice, session: &Session) -> Result<Self, Error> {
        let OnDevice { device: name, tf32 } = on;
        let opened = match name {
            DeviceName::Cpu | DeviceName::Emulated if tf32 => Err(DriverError::NoTf32),
            DeviceName::Cpu => return Ok(Self::Cpu),
            DeviceName::Cuda(number) => Driver::cuda(number, nvrtc(), kernels()),
            DeviceName::Emulated => Ok(Driver::emulated(emulation())),
        };
        let refused = |source| Error::NoDevice { name, source };
        let driver = opened.map_err(|error| refused(Box::new(error)))?;
        let driver = driver.with_accuracy(if tf32 { Accuracy::Tf32 } else { Accuracy::F32 });
        session.console.detail(format_args!("device: {}", driver.name()));
        match Cuda::new(driver.clone(), 1) {
            Ok(device) => {
                tell_of_products(name, &device, session);
                Ok(Self::Gpu(driver))
            }
            Err(device::Error::Driver(error)) => Err(refused(error)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whose products the device computes with.
fn tell_of_products(name: DeviceName, device: &Cuda, session: &Session) {
    match device.library_version() {
        Some(version) => session.console.detail(format_args!("products: cuBLASLt {version}")),
        None if matches!(name, DeviceName::Cuda(_)) => session.console.warn(format_args!(
            "cuBLASLt is not installed: products are those of a plain kernel, which is slow \
             (pip install nvidia-cublas, and let the linker find it)"
        )),
        None => {}
    }
}

/// Runs `$body` with `$open`, which opens `$device` with so many threads of the host.
macro_rules! on_device {
    ($device:expr, $open:ident => $body:expr) => {
        match $device {
            $crate::resolve::device::ComputeDevice::Cpu => {
                let $open = ::device::Cpu::open;
                $body
            }
            $crate::resolve::device::ComputeDevice::Gpu(driver) => {
                let $open = |threads| ::device::backend::Cuda::new(driver.clone(), threads);
                $body
            }
        }
    };
}
pub(crate) use on_device;

/// The C++ compiler of the emulator.
pub fn compiler() -> PathBuf {
    std::env::var_os("CXX").map_or_else(|| "g++".into(), PathBuf::from)
}

/// The emulator as a trainer uses it: barriers, masks and the ends of buffers are checked, single
/// accesses are not, which would take 30 times as long.
fn emulation() -> Emulation {
    let (compiler, cache) = (compiler(), kernels());
    let (order, checks, replaced) = (BlockOrder::Ascending, Checks::Few, Vec::new());
    let shared_limit = H100_SHARED_BYTES;
    Emulation { compiler, cache, order, checks, shared_limit, replaced }
}

/// The folder of compiled kernels: that of `ROWMILL_KERNELS`, else one below the user's cache.
fn kernels() -> PathBuf {
    let of = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("ROWMILL_KERNELS").unwrap_or_else(|| {
        let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
        cache.unwrap_or_else(std::env::temp_dir).join("rowmill").join("kernels")
    })
}

/// The folder of NVRTC, where it is not where the linker looks.
fn nvrtc() -> Option<PathBuf> {
    std::env::var_os("ROWMILL_NVRTC").map(PathBuf::from)
}

/// What to do about a device that cannot be used.
pub fn cure(error: &DriverError) -> &'static str {
    match error {
        DriverError::NoDriver { .. } => {
            "install NVIDIA's driver, or let the linker find it (LD_LIBRARY_PATH)"
        }
        DriverError::NoFunction { .. } => {
            "install a driver of CUDA 13, and take stubs of it out of LD_LIBRARY_PATH"
        }
        DriverError::NoTf32 => "leave --tf32 out, or name a GPU with --device cuda",
        DriverError::NoDevice { .. } => "let this process see a GPU (CUDA_VISIBLE_DEVICES)",
        DriverError::NoCompiler { .. } => {
            "install NVRTC (pip install nvidia-cuda-nvrtc) and name its folder in ROWMILL_NVRTC"
        }
        DriverError::Compile { .. } => "name a C++ compiler in CXX, or fix what the compiler says",
        _ => "see what nvidia-smi says",
    }
}
