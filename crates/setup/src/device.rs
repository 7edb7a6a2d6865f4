//! Opens the device that `--device` names and compiles its kernels. Commands do this before they
//! read or write anything, so that a missing driver or compiler is reported at once.

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

/// An open device on which a model is computed.
#[derive(Clone, Debug)]
pub enum ComputeDevice {
    Cpu(Isa),
    Gpu(Driver),
}

impl ComputeDevice {
    /// Returns the free and the total bytes of a GPU's memory. Returns `None` for devices that use
    /// the memory of the host.
    ///
    /// # Errors
    /// [`UsageError::NoDevice`] if the driver does not respond.
    pub fn memory(&self, name: DeviceName) -> Result<Option<[Bytes; 2]>, Error> {
        let Self::Gpu(driver) = self else { return Ok(None) };
        let refused = |source| UsageError::NoDevice { name, source: Box::new(source) };
        let memory = driver.memory().map_err(refused)?;
        Ok(memory.map(|bytes| bytes.map(|bytes| Bytes(bytes as u64))))
    }

    /// Opens the device and compiles its kernels, or loads the kernels that an earlier run
    /// compiled.
    ///
    /// # Errors
    /// [`UsageError::NoDevice`] with the name of the missing driver, library or compiler.
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
                report_products(name, &device, session);
                Ok(Self::Gpu(driver))
            }
            Err(device::Error::Driver(error)) => Err(refused(error)),
            Err(error) => Err(error.into()),
        }
    }
}

impl ComputeDevice {
    /// Returns the way in which a CPU multiplies bf16 matrices, or `None` for other devices.
    pub fn bf16_products(&self) -> Option<Bf16Products> {
        match self {
            Self::Cpu(isa) => Some(isa.bf16_products()),
            Self::Gpu(_) => None,
        }
    }

    /// Makes the device multiply bf16 matrices with the same instructions that `run` has used so
    /// far.
    ///
    /// # Errors
    /// [`UsageError::OtherArithmetic`] if this CPU lacks these instructions.
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

/// Reports which library computes matrix products on the device.
fn report_products(name: DeviceName, device: &Cuda, session: &Session) {
    match device.library_version() {
        Some(version) => session.console.detail(format_args!("products: cuBLASLt {version}")),
        None if matches!(name, DeviceName::Cuda(_)) => session.console.warn(format_args!(
            "cuBLASLt cannot be used, so a plain kernel computes matrix products, slowly; \
             `rowmill doctor device` reports why"
        )),
        None => {}
    }
}

/// Runs `$body` with a function `$open(threads)`, which opens `$device` with a number of host
/// threads. This code is a macro because the CPU and the GPU have different types.
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

/// Returns the C++ compiler that compiles kernels for the emulator.
pub fn compiler() -> PathBuf {
    std::env::var_os("CXX").map_or_else(|| "g++".into(), PathBuf::from)
}

/// Opens the GPU with the given number. Without a number, the GPU of this process's local rank is
/// opened.
fn cuda(number: Option<usize>, session: &Session) -> Result<Driver, DriverError> {
    let ordinal = match number {
        Some(number) => number,
        None => ordinal_of_local_rank(session)?,
    };
    Driver::cuda(ordinal, cuda_options()?)
}

/// Assigns the processes that a launcher started on one host to the GPUs of that host in turn.
fn ordinal_of_local_rank(session: &Session) -> Result<usize, DriverError> {
    let launcher = launcher::detect(|name| std::env::var(name).ok());
    let Some(local_rank) = launcher.and_then(|launcher| launcher.local_rank) else { return Ok(0) };
    let (local_rank, count) = (local_rank as usize, device_count()?);
    // A scheduler may show each process only its own GPU, which is then not shared.
    let has_own = count == 1 && variable("CUDA_VISIBLE_DEVICES").is_some();
    // Only the first rank without its own GPU warns, so that each host prints one line.
    if local_rank == count && count > 0 && !has_own {
        session.console.warn(format_args!(
            "more processes on this host than its {count} GPUs: local rank {local_rank} shares \
             cuda:0 with local rank 0"
        ));
    }
    Ok(local_rank.checked_rem(count).unwrap_or(0))
}

/// Reads the settings for GPUs from environment variables.
///
/// # Errors
/// Returns an error if no folder for compiled kernels is known.
pub fn cuda_options() -> Result<CudaOptions, DriverError> {
    Ok(CudaOptions::from_variables(|name| std::env::var_os(name), kernel_folder()?))
}

/// Configures the emulator for training. The emulator checks barriers, masks and the ends of
/// buffers. Checking every access would take 30 times as long.
fn emulation() -> Result<Emulation, DriverError> {
    let (compiler, cache) = (compiler(), kernel_folder()?);
    let (order, checks, replaced) = (BlockOrder::Ascending, Checks::Few, Vec::new());
    let shared_limit = H100_SHARED_BYTES;
    Ok(Emulation { compiler, cache, order, checks, shared_limit, replaced })
}

/// Returns the folder of compiled kernels, which is `ROWMILL_KERNELS` or a folder in the user's
/// cache.
fn kernel_folder() -> Result<PathBuf, DriverError> {
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = variable("ROWMILL_KERNELS")
        .or_else(|| cache().map(|cache| cache.join("rowmill").join("kernels")));
    folder.ok_or_else(|| DriverError::Cache {
        path: "ROWMILL_KERNELS".into(),
        problem: "expected a folder for compiled kernels, or HOME; both are unset".to_owned(),
    })
}

/// Reads an environment variable. An empty variable counts as unset.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
