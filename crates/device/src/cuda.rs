//! A GPU behind a small driver interface: modules, launches with packed arguments, memory,
//! copies, streams and events. There are two implementations: NVIDIA's driver, opened at run
//! time, and an emulator that compiles the same source as C++ and checks every access (decision
//! 0048).
//!
//! The operations live in the `cuda.rs` files of their own folders. Only this module and its
//! submodules use the crate `cudarc`.

mod argument;
pub mod blas;
mod buffer;
mod emulated;
mod emulation;
pub mod error;
mod event;
mod grid;
mod inspection;
mod kernel_cache;
mod libraries;
mod loader;
mod machine;
mod native;
pub mod nvrtc;
mod options;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use argument::KernelArguments;
use buffer::PinnedMemory;
pub use buffer::{Buffer, InFlight, Pinned};
pub use emulation::{BlockOrder, Checks, Emulation, H100_SHARED_BYTES};
pub use error::{DriverError, Fault, FaultKind, SourceLine};
pub use event::StreamEvent;
pub use grid::Grid;
pub use inspection::inspect_libraries;
pub use libraries::{CudaLibrary, LibraryRoots, LibrarySearch, RejectedLibrary};
pub use loader::{LibraryReport, LibraryVersion};
use machine::GpuMachine;
pub use native::{GpuProperties, device_count, driver_version};
pub use options::{CudaOptions, EventPurpose};
pub use source::{KernelSource, PRELUDE};

/// A device and the functions that control it. Clones are cheap and share the device.
#[derive(Clone)]
pub struct Driver {
    machine: Arc<GpuMachine>,
    accuracy: Accuracy,
}

/// The precision in which cuBLASLt multiplies f32 factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accuracy {
    #[default]
    F32,
    /// Rounds the factors to the 10 mantissa bits of TF32 and sums in f32, so that tensor cores
    /// can be used.
    Tf32,
}

/// A stream of device work, which runs in order. Only events order the work of different streams.
pub struct Stream {
    driver: Driver,
    handle: usize,
}

/// A compiled kernel source, loaded on one device. [`Module::kernel`] looks up its kernels by
/// name.
#[derive(Clone)]
pub struct Module {
    driver: Driver,
    name: &'static str,
    handle: ModuleHandle,
}

/// A loaded module: the driver's handle, or the shared library that emulates it.
#[derive(Clone)]
enum ModuleHandle {
    Native(usize),
    Emulated(Arc<emulated::KernelLibrary>),
}

/// A kernel: a function of a module that runs on the device.
#[derive(Clone)]
pub struct Kernel {
    driver: Driver,
    name: &'static str,
    handle: KernelHandle,
}

/// A kernel of a module: the driver's handle, or the entry point of the emulated kernel.
#[derive(Clone)]
enum KernelHandle {
    Native(usize),
    Emulated(emulated::Entry),
}

impl Driver {
    /// Opens device `ordinal` of NVIDIA's driver.
    ///
    /// # Errors
    /// Fails with [`DriverError::NoDriver`], [`DriverError::NoFunction`] or
    /// [`DriverError::NoDevice`], where `cudarc` itself would panic.
    pub fn cuda(ordinal: usize, options: CudaOptions) -> Result<Self, DriverError> {
        let device = native::NativeDevice::open(ordinal, options)?;
        let machine = Arc::new(GpuMachine::Native(Box::new(device)));
        Ok(Self { machine, accuracy: Accuracy::F32 })
    }

    /// Creates a device that is emulated on the CPU.
    #[must_use]
    pub fn emulated(emulation: Emulation) -> Self {
        let machine = Arc::new(GpuMachine::Emulated(emulated::EmulatedDevice::new(emulation)));
        Self { machine, accuracy: Accuracy::F32 }
    }

    /// Selects the precision of cuBLASLt's products. Rowmill's own kernels always multiply in
    /// f32.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        Self { accuracy, ..self }
    }

    /// Returns the name of the device, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &*self.machine {
            GpuMachine::Native(device) => device.name.clone(),
            GpuMachine::Emulated(_) => "emulated".to_owned(),
        }
    }

    /// Returns whether the emulator runs the kernels. Emulated work has ended when a call
    /// returns.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        matches!(&*self.machine, GpuMachine::Emulated(_))
    }

    /// Returns how often the emulator has run each kernel, so that a test can prove that kernels
    /// did the work. Empty for a GPU.
    #[must_use]
    pub fn emulated_launches(&self) -> BTreeMap<&'static str, u64> {
        match &*self.machine {
            GpuMachine::Native(_) => BTreeMap::new(),
            GpuMachine::Emulated(device) => device.launches(),
        }
    }

    /// Returns the free and the total bytes of device memory, or `None` for the emulator, which
    /// uses host memory.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn memory(&self) -> Result<Option<[usize; 2]>, DriverError> {
        match &*self.machine {
            GpuMachine::Native(device) => device.memory().map(Some),
            GpuMachine::Emulated(_) => Ok(None),
        }
    }

    /// Returns the properties of the GPU, or `None` for the emulator.
    #[must_use]
    pub fn properties(&self) -> Option<GpuProperties> {
        match &*self.machine {
            GpuMachine::Native(device) => Some(device.properties()),
            GpuMachine::Emulated(_) => None,
        }
    }

    /// Returns whether the cache has usable code of a source for this GPU, so that the compiler
    /// NVRTC is not needed.
    #[must_use]
    pub fn has_compiled(&self, source: KernelSource) -> bool {
        match &*self.machine {
            GpuMachine::Native(device) => device.has_compiled(source),
            GpuMachine::Emulated(_) => false,
        }
    }

    /// Returns the bytes of shared memory available to a block. A kernel that needs more than the
    /// 48 KB that every GPU allows requests them at its first launch.
    #[must_use]
    pub fn shared_limit(&self) -> usize {
        match &*self.machine {
            GpuMachine::Native(device) => device.shared_limit,
            GpuMachine::Emulated(device) => device.shared_limit(),
        }
    }

    /// Compiles a kernel source, or loads it from the cache that an earlier run filled.
    ///
    /// # Errors
    /// Fails with [`DriverError::Compile`], which contains the compiler's log.
    pub fn module(&self, source: KernelSource) -> Result<Module, DriverError> {
        let handle = match &*self.machine {
            GpuMachine::Native(device) => ModuleHandle::Native(device.module(source)?),
            GpuMachine::Emulated(device) => ModuleHandle::Emulated(device.library(source)?),
        };
        Ok(Module { driver: self.clone(), name: source.name, handle })
    }

    /// Allocates device memory with unspecified content, aligned to 256 bytes.
    ///
    /// # Errors
    /// Fails with [`DriverError::OutOfMemory`] if the device has too little free memory.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, DriverError> {
        let address = match &*self.machine {
            GpuMachine::Native(device) => device.alloc(bytes)?,
            GpuMachine::Emulated(device) => device.alloc(bytes)?,
        };
        Ok(Buffer::new(&self.machine, address, bytes))
    }

    /// Allocates zeroed, pinned host memory.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DriverError> {
        let memory = match &*self.machine {
            GpuMachine::Native(device) => PinnedMemory::Native(device.pinned(bytes)?),
            GpuMachine::Emulated(_) => PinnedMemory::Emulated(vec![0; bytes]),
        };
        Ok(Pinned::new(&self.machine, memory))
    }

    /// Creates a new stream, on which operations run in order.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn stream(&self) -> Result<Stream, DriverError> {
        let handle = match &*self.machine {
            GpuMachine::Native(device) => device.stream()?,
            GpuMachine::Emulated(_) => 0,
        };
        Ok(Stream { driver: self.clone(), handle })
    }

    /// Creates an event that is not yet recorded.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn event(&self, purpose: EventPurpose) -> Result<StreamEvent, DriverError> {
        let handle = match &*self.machine {
            GpuMachine::Native(device) => device.event(purpose)?,
            GpuMachine::Emulated(_) => 0,
        };
        Ok(StreamEvent::new(&self.machine, handle))
    }
}

impl Module {
    /// Finds the kernel of this name in the module.
    ///
    /// # Errors
    /// Fails with [`DriverError::NoKernel`] if the module does not define it.
    pub fn kernel(&self, name: &'static str) -> Result<Kernel, DriverError> {
        let missing =
            || DriverError::NoKernel { source_name: self.name.to_owned(), kernel: name.to_owned() };
        let handle = match (&*self.driver.machine, &self.handle) {
            (GpuMachine::Native(device), ModuleHandle::Native(module)) => {
                KernelHandle::Native(device.function(*module, name)?.ok_or_else(missing)?)
            }
            (_, ModuleHandle::Emulated(library)) => {
                KernelHandle::Emulated(emulated::Entry::find(library, name).ok_or_else(missing)?)
            }
            (GpuMachine::Emulated(_), ModuleHandle::Native(_)) => return Err(missing()),
        };
        Ok(Kernel { driver: self.driver.clone(), name, handle })
    }
}

impl Stream {
    /// Returns the device to which the stream belongs.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the driver's handle of the stream as a number.
    pub(crate) fn number(&self) -> usize {
        self.handle
    }

    /// Launches `kernel` after all earlier work of the stream.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] before anything runs, or with [`DriverError::Fault`] if
    /// the emulator detects a fault of the kernel.
    pub fn launch(
        &self,
        kernel: &Kernel,
        grid: Grid,
        arguments: &KernelArguments,
    ) -> Result<(), DriverError> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let grid = grid.checked(kernel.name, self.driver.shared_limit())?;
        let is_here = Arc::ptr_eq(&self.driver.machine, &kernel.driver.machine);
        match (&*self.driver.machine, &kernel.handle) {
            (GpuMachine::Native(device), KernelHandle::Native(function)) if is_here => {
                device.launch(*function, kernel.name, self.handle, grid, arguments.bytes())
            }
            (GpuMachine::Emulated(device), KernelHandle::Emulated(entry)) if is_here => {
                device.launch(entry, kernel.name, grid, arguments.bytes())
            }
            _ => Err(DriverError::NoKernel {
                source_name: "another device".to_owned(),
                kernel: kernel.name.to_owned(),
            }),
        }
    }

    /// Copies host bytes to `buffer`, starting at byte `start`. The host bytes have been read when
    /// this returns.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if the bytes do not fit.
    pub fn upload(&self, buffer: &Buffer, start: usize, bytes: &[u8]) -> Result<(), DriverError> {
        let address = buffer.part("upload", start, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        match &*self.driver.machine {
            GpuMachine::Native(device) => device.upload(self.handle, address, bytes),
            GpuMachine::Emulated(device) => device.upload(address, bytes),
        }
    }

    /// Copies parts of pinned memory asynchronously, each to the start of a buffer, and then
    /// records `done`. Wait for the returned value to get the pinned memory back.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if the bytes do not fit.
    pub fn upload_pinned(
        &self,
        pinned: Pinned,
        done: StreamEvent,
        parts: &[(Range<usize>, &Buffer)],
    ) -> Result<InFlight, DriverError> {
        for (range, to) in parts {
            let Some(from) = pinned.bytes().get(range.clone()) else {
                return Err(pinned.too_short("upload of pinned memory", range.end));
            };
            self.upload(to, 0, from)?;
        }
        self.record(&done)?;
        Ok(InFlight::new(pinned, done))
    }

    /// Copies a whole buffer to the start of pinned memory asynchronously, and then records
    /// `done`.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if the buffer does not fit.
    pub fn download_pinned(
        &self,
        buffer: &Buffer,
        mut pinned: Pinned,
        done: StreamEvent,
    ) -> Result<InFlight, DriverError> {
        let bytes = buffer.bytes();
        if bytes > pinned.bytes().len() {
            return Err(pinned.too_short("download to pinned memory", bytes));
        }
        match &*self.driver.machine {
            GpuMachine::Native(device) => {
                // `InFlight`, which this function returns, owns the pinned memory until `done`
                // has passed.
                device.download(self.handle, buffer.address(), &mut pinned.bytes_mut()[..bytes])?;
            }
            GpuMachine::Emulated(device) => {
                device.download(buffer.address(), &mut pinned.bytes_mut()[..bytes])?;
            }
        }
        self.record(&done)?;
        Ok(InFlight::new(pinned, done))
    }

    /// Copies bytes of `buffer`, from byte `start` on, to the host, and waits for the copy.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if the buffer is shorter than requested.
    pub fn download(
        &self,
        buffer: &Buffer,
        start: usize,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        let address = buffer.part("download", start, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        match &*self.driver.machine {
            GpuMachine::Native(device) => {
                device.download(self.handle, address, bytes)?;
                device.synchronize(self.handle)
            }
            GpuMachine::Emulated(device) => device.download(address, bytes),
        }
    }

    /// Copies the first `bytes` bytes of one buffer to another.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if either buffer is shorter than `bytes`.
    pub fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), DriverError> {
        let (from, to) = (from.part("copy from", 0, bytes)?, to.part("copy to", 0, bytes)?);
        match &*self.driver.machine {
            GpuMachine::Native(device) => device.copy(self.handle, [from, to], bytes),
            GpuMachine::Emulated(device) => device.copy([from, to], bytes),
        }
    }

    /// Sets every byte of a buffer to `byte`.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DriverError> {
        match &*self.driver.machine {
            GpuMachine::Native(device) => {
                device.fill(self.handle, buffer.address(), buffer.bytes(), byte)
            }
            GpuMachine::Emulated(device) => device.fill(buffer.address(), buffer.bytes(), byte),
        }
    }

    /// Records `event` in the stream, after the work queued so far.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn record(&self, event: &StreamEvent) -> Result<(), DriverError> {
        match &*self.driver.machine {
            GpuMachine::Native(device) => device.record(event.handle(), self.handle),
            GpuMachine::Emulated(_) => Ok(()),
        }
    }

    /// Makes later work of this stream wait until `event` has passed.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn wait(&self, event: &StreamEvent) -> Result<(), DriverError> {
        match &*self.driver.machine {
            GpuMachine::Native(device) => device.wait(self.handle, event.handle()),
            GpuMachine::Emulated(_) => Ok(()),
        }
    }

    /// Waits for all queued work of the stream.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`], also if an earlier kernel failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        match &*self.driver.machine {
            GpuMachine::Native(device) => device.synchronize(self.handle),
            GpuMachine::Emulated(_) => Ok(()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let GpuMachine::Native(device) = &*self.driver.machine {
            device.drop_stream(self.handle);
        }
    }
}

macro_rules! shown {
    ($($type:ident),*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        }
    )*};
}
shown!(Driver, Stream, StreamEvent, Module, Kernel, Buffer, Pinned, InFlight);
