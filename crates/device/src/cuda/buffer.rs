//! Device memory, and pinned host memory for copies from and to the device. This module does not
//! depend on kernels or streams.

use std::ops::Range;
use std::sync::Arc;

use super::error::DriverError;
use super::event::StreamEvent;
use super::machine::GpuMachine;
use super::native;

/// Device memory, or a part of it. The memory is freed when its last part is dropped.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<DeviceMemory>,
    address: u64,
    bytes: usize,
}

/// The device memory of a buffer, freed when it is dropped.
struct DeviceMemory {
    machine: Arc<GpuMachine>,
    address: u64,
}

/// Pinned host memory, which the device can access directly for copies. Dropping this value frees
/// the memory.
pub struct Pinned {
    machine: Arc<GpuMachine>,
    memory: PinnedMemory,
}

/// Host memory for asynchronous copies. An emulated device copies immediately, so ordinary memory
/// suffices for it.
pub(super) enum PinnedMemory {
    Native(native::Pinned),
    Emulated(Vec<u8>),
}

/// Pinned memory that an asynchronous copy still reads or writes. Dropping it waits for the copy.
pub struct InFlight {
    held: Option<(Pinned, StreamEvent)>,
}

impl Buffer {
    pub(super) fn new(machine: &Arc<GpuMachine>, address: u64, bytes: usize) -> Self {
        Self {
            memory: Arc::new(DeviceMemory { machine: Arc::clone(machine), address }),
            address,
            bytes,
        }
    }

    /// Returns the device address at which the buffer starts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size of the buffer in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a part of the buffer, which shares the buffer's memory.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if `range` ends beyond the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, DriverError> {
        let address = self.part("part of a buffer", range.start, range.len())?;
        Ok(Self { memory: Arc::clone(&self.memory), address, bytes: range.len() })
    }

    pub(super) fn part(&self, of: &str, start: usize, bytes: usize) -> Result<u64, DriverError> {
        let room = self.bytes.saturating_sub(start);
        if bytes > room {
            let (of, what) = (of.to_owned(), "bytes, at most");
            return Err(DriverError::Extent { of, what, expected: room, got: bytes });
        }
        Ok(self.address + start as u64)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        match &*self.machine {
            GpuMachine::Native(device) => device.free(self.address),
            GpuMachine::Emulated(device) => device.free(self.address),
        }
    }
}

impl Pinned {
    pub(super) fn new(machine: &Arc<GpuMachine>, memory: PinnedMemory) -> Self {
        Self { machine: Arc::clone(machine), memory }
    }

    /// Returns the contents of the pinned memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            PinnedMemory::Native(memory) => memory.bytes(),
            PinnedMemory::Emulated(bytes) => bytes,
        }
    }

    /// Returns the contents of the pinned memory for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            PinnedMemory::Native(memory) => memory.bytes_mut(),
            PinnedMemory::Emulated(bytes) => bytes,
        }
    }

    pub(super) fn too_short(&self, of: &str, got: usize) -> DriverError {
        let (of, expected) = (of.to_owned(), self.bytes().len());
        DriverError::Extent { of, what: "bytes, at most", expected, got }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let (GpuMachine::Native(device), PinnedMemory::Native(memory)) =
            (&*self.machine, &self.memory)
        {
            device.drop_pinned(memory);
        }
    }
}

impl InFlight {
    pub(super) fn new(pinned: Pinned, done: StreamEvent) -> Self {
        Self { held: Some((pinned, done)) }
    }

    /// Waits for the copy and returns the memory and the event.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn wait(mut self) -> Result<(Pinned, StreamEvent), DriverError> {
        let Some((pinned, done)) = self.held.take() else { unreachable!("held until now") };
        if !done.has_passed()? {
            done.synchronize()?;
        }
        Ok((pinned, done))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // The result is ignored, because `drop` cannot report a failure.
        let _ = self.held.as_ref().map(|(_, done)| done.synchronize());
    }
}
