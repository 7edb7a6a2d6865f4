//! Moments of streams.

use std::sync::Arc;

use super::error::DriverError;
use super::machine::Machine;

/// A moment of a stream.
pub struct Event {
    machine: Arc<Machine>,
    handle: usize,
}

impl Event {
    pub(super) fn new(machine: &Arc<Machine>, handle: usize) -> Self {
        Self { machine: Arc::clone(machine), handle }
    }

    pub(super) fn handle(&self) -> usize {
        self.handle
    }

    /// Waits for the moment.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn synchronize(&self) -> Result<(), DriverError> {
        match &*self.machine {
            Machine::Native(device) => device.synchronize_event(self.handle),
            Machine::Emulated(_) => Ok(()),
        }
    }

    /// Whether the moment has passed.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn has_passed(&self) -> Result<bool, DriverError> {
        match &*self.machine {
            Machine::Native(device) => device.has_passed(self.handle),
            Machine::Emulated(_) => Ok(true),
        }
    }

    /// Milliseconds from this moment to `later`; 0 of the emulator, whose work takes no device
    /// time.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32, DriverError> {
        match &*self.machine {
            Machine::Native(device) => device.elapsed_ms([self.handle, later.handle]),
            Machine::Emulated(_) => Ok(0.0),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Machine::Native(device) = &*self.machine {
            device.drop_event(self.handle);
        }
    }
}
