//! Per-step uploads through pinned memory: the host fills one block while the device reads the
//! other. This module does not depend on the meaning of the bytes.

use std::collections::VecDeque;

use crate::cuda::{Driver, DriverError, EventPurpose, InFlight, Pinned, StreamEvent};

/// Number of pinned blocks in rotation. Two blocks alternate, because the host may queue a step
/// before the device has finished the last one.
const BLOCKS: usize = 2;

/// Pinned host memory blocks that uploads use in rotation.
#[derive(Debug, Default)]
pub struct Staging {
    bytes: usize,
    spare: Vec<(Pinned, StreamEvent)>,
    in_flight: VecDeque<InFlight>,
}

impl Staging {
    /// Returns a block of at least `bytes` bytes, after the last copy that reads it has ended.
    /// Blocks are allocated by the first call, and again when a call needs more bytes.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn take(
        &mut self,
        driver: &Driver,
        bytes: usize,
    ) -> Result<(Pinned, StreamEvent), DriverError> {
        if self.spare.is_empty() && self.in_flight.is_empty() || bytes > self.bytes {
            self.in_flight.drain(..).try_for_each(|flight| flight.wait().map(drop))?;
            self.spare.clear();
            for _ in 0..BLOCKS {
                self.spare.push((driver.pinned(bytes)?, driver.event(EventPurpose::Order)?));
            }
            self.bytes = bytes;
        }
        if let Some(block) = self.spare.pop() {
            return Ok(block);
        }
        let Some(oldest) = self.in_flight.pop_front() else {
            unreachable!("a block that was taken is put back")
        };
        oldest.wait()
    }

    /// Keeps a block until the copy that reads it has ended.
    pub fn put(&mut self, flight: InFlight) {
        self.in_flight.push_back(flight);
    }
}
