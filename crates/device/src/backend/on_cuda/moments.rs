//! Device timestamps of a stream, taken by events, for traces of GPU work. Knows no operation.

use std::sync::Arc;

use crate::cuda::{Driver, DriverError, EventPurpose, Stream, StreamEvent};
use crate::error::Error;

/// Moments of one queue, counted from one at which the host and the device met.
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

    /// Waits for the queue: now becomes the origin of later moments. Forgets all marks.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn begin(&mut self) -> Result<(), Error> {
        self.marked = 0;
        self.stream.record(&self.zero)?;
        Ok(self.zero.synchronize()?)
    }

    /// Marks the moment at which the queue has done what it was given so far; does not wait.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn mark(&mut self) -> Result<(), Error> {
        if self.marked == self.events.len() {
            self.events.push(self.driver.event(EventPurpose::Timing)?);
        }
        self.stream.record(&self.events[self.marked])?;
        self.marked += 1;
        Ok(())
    }

    /// Waits for all marks; nanoseconds to each since [`Self::begin`].
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn nanoseconds(&self) -> Result<Vec<i64>, Error> {
        let marked = &self.events[..self.marked];
        if let Some(last) = marked.last() {
            last.synchronize()?;
        }
        let since = |event| Ok((f64::from(self.zero.elapsed_ms(event)?) * 1e6).round() as i64);
        marked.iter().map(since).collect()
    }
}
