//! The device that `--device` names, opened, with its kernels compiled: what is missing is said
//! before anything is read or written.

use std::path::{Path, PathBuf};

use comm::mpi::launcher;
use device::Isa;
use device::backend::Cuda;
use device::cpu::Bf16Products;
use device::cuda::{
    Accuracy, BlockOrder, Checks, CudaOptions, Driver, DriverError, Emulation, H100_SHARED_BYTES,
    device_count,
};

use schema::Bytes;

use crate::Session;
use crate::args::{DeviceName, OnDevice};
use crate::error::{Error, UsageError};

/// Where a model is computed.
#[derive(Clone, Debug)]
pub enum ComputeDevice {
    /// On the host's cores.
    Cpu(Isa),
    Gpu(Driver),
}

impl ComputeDevice {
    /// Bytes free and bytes in all of a GPU; `None` of what has the host's memory.
    ///
    /// # Errors
    /// [`UsageError::NoDevice`] where it does not answer.
    pub fn memory(&self, name: DeviceName) -> Result<Option<[Bytes; 2]>, Error> {
        let Self::Gpu(driver) = self else { return Ok(None) };
        let refused = |source| UsageError::NoDevice { name, source: Box::new(source) };
        let memory = driver.memory().map_err(refused)?;
        Ok(memory.map(|bytes| bytes.map(|bytes| Bytes(bytes as u64))))
    }

    /// Opens the device and compiles its kernels, or takes what an earlier run compiled.
    ///
    /// # Errors
    /// [`UsageError::NoDevice`] saying what is missing.
    pub fn open(on: OnDevice, session: &Session) -> Result<Self, Error> {
        let OnDevice { device: name, tf32 } = on;
        let opened = match name {
            DeviceName::Cpu | DeviceName::Emulated if tf32 => Err(DriverError::NoTf32),
            DeviceName::Cpu => return Ok(Self::Cpu(Isa::detect())),
            DeviceName::Cuda(number) => cuda(number, session),
            DeviceName::Emulated => emulation().map(Driver::emulated),
        };
        let refused = |source| Error::from(UsageError::NoDevice { name, source });
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

impl ComputeDevice {
    /// Returns how a CPU multiplies bf16 matrices, or `None` for other devices.
    pub fn bf16_products(&self) -> Option<Bf16Products> {
        match self {
            Self::Cpu(isa) => Some(isa.bf16_products()),
            Self::Gpu(_) => None,
        }
    }

    /// Makes the device multiply bf16 as `run` did so far.
    ///
    /// # Errors
    /// [`UsageError::OtherArithmetic`] where this CPU cannot.
    pub fn multiplying_as(self, products: Bf16Products, run: &Path) -> Result<Self, Error> {
        match self {
            Self::Cpu(isa) => {
                let isa = isa.with_bf16_products(products);
                let refused = || UsageError::OtherArithmetic { run: run.to_owned() };
                Ok(Self::Cpu(isa.ok_or_else(refused)?))
            }
            Self::Gpu(driver) => Ok(Self::Gpu(driver)),
        }
    }
}

/// Whose products the device computes with.
fn tell_of_products(name: DeviceName, device: &Cuda, session: &Session) {
    match device.library_version() {
        Some(version) => session.console.detail(format_args!("products: cuBLASLt {version}")),
        None if matches!(name, DeviceName::Cuda(_)) => session.console.warn(format_args!(
            "cuBLASLt cannot be used, so a plain kernel computes matrix products, slowly; \
             `rowmill doctor device` reports why"
        )),
        None => {}
    }
}

/// Runs `$body` with `$open`, which opens `$device` with so many threads of the host.
#[macro_export]
macro_rules! on_device {
    ($device:expr, $open:ident => $body:expr) => {
        match $device {
            $crate::device::ComputeDevice::Cpu(isa) => {
                let $open =
                    |threads| Ok::<_, ::device::Error>(::device::Cpu::with_isa(threads, *isa));
                $body
            }
            $crate::device::ComputeDevice::Gpu(driver) => {
                let $open = |threads| ::device::backend::Cuda::new(driver.clone(), threads);
                $body
            }
        }
    };
}
/// The C++ compiler of the emulator.
pub fn compiler() -> PathBuf {
    std::env::var_os("CXX").map_or_else(|| "g++".into(), PathBuf::from)
}

/// The GPU of this number, else the one that belongs to this process among those of its host.
fn cuda(number: Option<usize>, session: &Session) -> Result<Driver, DriverError> {
    let ordinal = match number {
        Some(number) => number,
        None => ordinal_of_local_rank(session)?,
    };
    Driver::cuda(ordinal, cuda_options()?)
}

/// Spreads the processes that a launcher started on one host over the GPUs that they see.
fn ordinal_of_local_rank(session: &Session) -> Result<usize, DriverError> {
    let launcher = launcher::detect(|name| std::env::var(name).ok());
    let Some(local_rank) = launcher.and_then(|launcher| launcher.local_rank) else { return Ok(0) };
    let (local_rank, count) = (local_rank as usize, device_count()?);
    // A scheduler may show each process a GPU of its own: then nothing is shared.
    let has_own = count == 1 && variable("CUDA_VISIBLE_DEVICES").is_some();
    // One line for each host.
    if local_rank == count && count > 0 && !has_own {
        session.console.warn(format_args!(
            "more processes on this host than its {count} GPUs: local rank {local_rank} shares \
             cuda:0 with local rank 0"
        ));
    }
    Ok(local_rank.checked_rem(count).unwrap_or(0))
}

/// How GPUs are used here.
///
/// # Errors
/// As [`kernels`].
pub fn cuda_options() -> Result<CudaOptions, DriverError> {
    Ok(CudaOptions::from_variables(|name| std::env::var_os(name), kernels()?))
}

/// The emulator as a trainer uses it: barriers, masks and the ends of buffers are checked, single
/// accesses are not, which would take 30 times as long.
fn emulation() -> Result<Emulation, DriverError> {
    let (compiler, cache) = (compiler(), kernels()?);
    let (order, checks, replaced) = (BlockOrder::Ascending, Checks::Few, Vec::new());
    let shared_limit = H100_SHARED_BYTES;
    Ok(Emulation { compiler, cache, order, checks, shared_limit, replaced })
}

/// The folder of compiled kernels: that of `ROWMILL_KERNELS`, else one below the user's cache.
fn kernels() -> Result<PathBuf, DriverError> {
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = variable("ROWMILL_KERNELS")
        .or_else(|| cache().map(|cache| cache.join("rowmill").join("kernels")));
    folder.ok_or_else(|| DriverError::Cache {
        path: "ROWMILL_KERNELS".into(),
        problem: "expected a folder for compiled kernels, or HOME; both are unset".to_owned(),
    })
}

/// A variable of the environment that is set and not empty.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
