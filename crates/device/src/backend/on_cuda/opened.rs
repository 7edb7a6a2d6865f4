//! An opened GPU, or its emulation, with its compiled kernels and the threads of the host.

use super::kernels::Kernels;
use crate::cpu::Cpu;
use crate::cuda::{Buffer, Driver, LibraryVersion, Stream};
use crate::error::Error;

/// A device of [`crate::cuda`] with its kernels, and a thread pool for work on the host.
#[derive(Debug)]
pub struct Cuda {
    pub(super) driver: Driver,
    /// The stream of allocations and copies that happen before the first step.
    pub(super) setup: Stream,
    pub(super) kernels: Kernels,
    pub(super) host: Cpu,
}

impl Cuda {
    /// Opens the device of `driver` with `threads` host threads. Compiles the kernels, or loads
    /// them from the cache that an earlier run filled.
    ///
    /// # Errors
    /// Fails with [`Error::Driver`] if the driver reports an error.
    pub fn new(driver: Driver, threads: usize) -> Result<Self, Error> {
        let kernels = Kernels::load(&driver)?;
        let setup = driver.stream()?;
        Ok(Self { driver, setup, kernels, host: Cpu::new(threads) })
    }

    /// Returns the version of cuBLASLt, or `None` if rowmill's own kernels compute products.
    #[must_use]
    pub fn library_version(&self) -> Option<LibraryVersion> {
        self.kernels.gemm.library_version()
    }

    /// Returns the GPU's driver, or its emulation.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the CPU device of the host.
    #[must_use]
    pub fn host_cpu(&self) -> &Cpu {
        &self.host
    }

    /// Allocates device memory, and returns after the memory has been filled with zeros.
    pub(super) fn zeroed(&self, bytes: usize) -> Result<Buffer, Error> {
        let buffer = self.driver.alloc(bytes)?;
        if bytes > 0 {
            self.setup.fill(&buffer, 0)?;
            self.setup.synchronize()?;
        }
        Ok(buffer)
    }
}
