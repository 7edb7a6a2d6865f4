//! Progress of reading the inputs over all passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schema::Bytes;
use schema::source::DataFormat;

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::{InputOrigins, ReadObserver};
use crate::parse::format::input_files;

/// Progress of preparing a dataset, passed to the caller's callback so that it can draw a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataProgress {
    /// Bytes read from the (compressed) files over all passes.
    pub bytes_done: u64,
    /// Bytes to be read over all passes; `None` with standard input.
    pub bytes_total: Option<u64>,
    /// Predicted size of temporary files beside the output, in bytes; 0 if memory is expected to
    /// suffice.
    pub temporary_bytes: u64,
    /// Number of rows read in the current pass.
    pub rows: u64,
}

/// Measures the progress of all passes over the inputs and reports it.
pub(crate) struct ProgressMeter<'a> {
    observer: ReadObserver,
    bytes_total: Option<u64>,
    passes: u64,
    temporary: Arc<AtomicU64>,
    show: &'a mut dyn FnMut(DataProgress),
}

/// The progress of one pass over the inputs, for steps that depend on it.
pub(crate) struct Pass {
    observer: ReadObserver,
    /// Bytes read by earlier passes.
    start: u64,
    length: u64,
    temporary: Arc<AtomicU64>,
}

impl Pass {
    /// Creates a pass for inputs whose length does not matter.
    pub(crate) fn counting(observer: &ReadObserver) -> Self {
        let (start, length, temporary) = Default::default();
        Self { observer: observer.clone(), start, length, temporary }
    }

    /// Returns the share of the inputs that has been read; 1 if their length is unknown.
    pub(crate) fn share(&self) -> f64 {
        if self.length == 0 {
            return 1.0;
        }
        (self.bytes() as f64 / self.length as f64).min(1.0)
    }

    /// Returns the bytes to be read in this pass; 0 if unknown.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the observer that counts the bytes read.
    pub(crate) fn observer(&self) -> &ReadObserver {
        &self.observer
    }

    /// Returns the bytes read in this pass.
    pub(crate) fn bytes(&self) -> u64 {
        self.observer.bytes_done.load(Ordering::Relaxed).saturating_sub(self.start)
    }

    /// Reports the predicted size of temporary files.
    pub(crate) fn report_temporary(&self, bytes: Bytes) {
        self.temporary.store(bytes.0, Ordering::Relaxed);
    }
}

impl<'a> ProgressMeter<'a> {
    /// Creates a meter for `passes` passes over `inputs`.
    pub(crate) fn new(
        format: DataFormat,
        inputs: &[String],
        passes: u64,
        show: &'a mut dyn FnMut(DataProgress),
    ) -> Result<Self, Error> {
        let files = input_files(format, inputs)?;
        let bytes_total = decompress::total_bytes(&files)?.map(|bytes| bytes * passes);
        let (observer, temporary) = Default::default();
        Ok(Self { observer, bytes_total, passes, temporary, show })
    }

    /// Makes the meter also hash the files while they are read.
    #[must_use]
    pub(crate) fn with_origins(mut self, origins: Arc<InputOrigins>) -> Self {
        self.observer.origins = Some(origins);
        self
    }

    /// Starts the next pass over the inputs.
    pub(crate) fn pass(&self) -> Pass {
        Pass {
            start: self.observer.bytes_done.load(Ordering::Relaxed),
            length: self.bytes_total.map_or(0, |total| total / self.passes),
            observer: self.observer.clone(),
            temporary: Arc::clone(&self.temporary),
        }
    }

    pub(crate) fn show(&mut self, rows: u64) {
        let bytes_done = self.observer.bytes_done.load(Ordering::Relaxed);
        let temporary_bytes = self.temporary.load(Ordering::Relaxed);
        (self.show)(DataProgress {
            bytes_done,
            bytes_total: self.bytes_total,
            temporary_bytes,
            rows,
        });
    }
}
