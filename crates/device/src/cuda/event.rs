//! Events: points in the work of a stream, used to wait for the work or to measure its time.

use std::sync::Arc;

use super::error::DriverError;
use super::machine::GpuMachine;

/// A point in the work of a stream, for which the host or another stream can wait.
pub struct StreamEvent {
    machine: Arc<GpuMachine>,
    handle: usize,
}

impl StreamEvent {
    pub(super) fn new(machine: &Arc<GpuMachine>, handle: usize) -> Self {
        Self { machine: Arc::clone(machine), handle }
    }

    pub(super) fn handle(&self) -> usize {
        self.handle
    }

    /// Waits until the stream has reached this point.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        match &*self.machine {
            GpuMachine::Native(device) => device.synchronize_event(self.handle),
            GpuMachine::Emulated(_) => Ok(()),
        }
    }

    /// Returns whether the stream has reached this point.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn has_passed(&self) -> Result<bool, DriverError> {
        match &*self.machine {
            GpuMachine::Native(device) => device.has_passed(self.handle),
            GpuMachine::Emulated(_) => Ok(true),
        }
    }

    /// Returns the milliseconds from this event to `later`. The emulator returns 0, because its
    /// work takes no device time.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`], also if either event does not record a time.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32, DriverError> {
        match &*self.machine {
            GpuMachine::Native(device) => device.elapsed_ms([self.handle, later.handle]),
            GpuMachine::Emulated(_) => Ok(0.0),
        }
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        if let GpuMachine::Native(device) = &*self.machine {
            device.drop_event(self.handle);
        }
    }
}
