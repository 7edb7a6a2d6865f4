//! Device timestamps of a stream, taken by events, for traces of GPU work. This module does not
//! depend on the operations.

use std::sync::Arc;

use crate::cuda::{Driver, DriverError, EventPurpose, Stream, StreamEvent};
use crate::error::Error;

/// Completion times of one queue, relative to an origin at which the host waited for the device.
#[derive(Debug)]
pub struct QueueMoments {
    driver: Driver,
    stream: Arc<Stream>,
    zero: StreamEvent,
    events: Vec<StreamEvent>,
    marked: usize,
}

impl QueueMoments {
    pub(super) fn new(driver: &Driver, stream: &Arc<Stream>) -> Result<Self, DriverError> {
        let (driver, stream) = (driver.clone(), Arc::clone(stream));
        let zero = driver.event(EventPurpose::Timing)?;
        Ok(Self { driver, stream, zero, events: Vec::new(), marked: 0 })
    }

    /// Waits for the queue, makes the present the origin of later timestamps, and removes all
    /// marks.
    ///
    /// # Errors
    /// Fails with [`Error::Driver`] if the driver reports an error.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.marked = 0;
        self.stream.record(&self.zero)?;
        Ok(self.zero.synchronize()?)
    }

    /// Marks the completion of all work queued so far. Does not wait.
    ///
    /// # Errors
    /// Fails with [`Error::Driver`] if the driver reports an error.
    pub fn mark(&mut self) -> Result<(), Error> {
        if self.marked == self.events.len() {
            self.events.push(self.driver.event(EventPurpose::Timing)?);
        }
        self.stream.record(&self.events[self.marked])?;
        self.marked += 1;
        Ok(())
    }

    /// Waits for all marks and returns the nanoseconds from [`Self::begin`] to each mark.
    ///
    /// # Errors
    /// Fails with [`Error::Driver`] if the driver reports an error.
    pub fn nanoseconds(&self) -> Result<Vec<i64>, Error> {
        let marked = &self.events[..self.marked];
        if let Some(last) = marked.last() {
            last.synchronize()?;
        }
        let since = |event| Ok((f64::from(self.zero.elapsed_ms(event)?) * 1e6).round() as i64);
        marked.iter().map(since).collect()
    }
}
