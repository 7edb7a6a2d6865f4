//! How far reading the inputs is, over all passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schema::Bytes;
use schema::source::DataFormat;

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::{InputOrigins, ReadObserver};
use crate::parse::format::input_files;

/// How far a preparation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataProgress {
    /// Bytes of the (compressed) files read, over all passes.
    pub bytes_done: u64,
    /// Bytes there are to read over all passes; unknown for standard input.
    pub bytes_total: Option<u64>,
    /// Bytes of temporary files that counting is expected to need beside the output; 0 where
    /// memory seems to be enough.
    pub temporary_bytes: u64,
    /// Rows of the current pass.
    pub rows: u64,
}

/// How far all passes over the inputs are.
pub(crate) struct ProgressMeter<'a> {
    observer: ReadObserver,
    bytes_total: Option<u64>,
    passes: u64,
    temporary: Arc<AtomicU64>,
    show: &'a mut dyn FnMut(DataProgress),
}

/// One pass over the inputs, as those see it who need to know how far it is.
pub(crate) struct Pass {
    observer: ReadObserver,
    /// Bytes read by earlier passes, and those of this one.
    start: u64,
    length: u64,
    temporary: Arc<AtomicU64>,
}

impl Pass {
    /// A pass over inputs whose length does not matter.
    pub(crate) fn counting(observer: &ReadObserver) -> Self {
        let (start, length, temporary) = Default::default();
        Self { observer: observer.clone(), start, length, temporary }
    }

    /// The share of the inputs that has been read; 1 where their length is unknown.
    pub(crate) fn share(&self) -> f64 {
        if self.length == 0 {
            return 1.0;
        }
        (self.bytes() as f64 / self.length as f64).min(1.0)
    }

    /// Bytes there are to read; 0 where unknown.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// What notes the bytes that are read.
    pub(crate) fn observer(&self) -> &ReadObserver {
        &self.observer
    }

    /// Bytes that have been read.
    pub(crate) fn bytes(&self) -> u64 {
        self.observer.bytes_done.load(Ordering::Relaxed).saturating_sub(self.start)
    }

    /// Says how much of the disk will be used for a while.
    pub(crate) fn state_temporary(&self, bytes: Bytes) {
        self.temporary.store(bytes.0, Ordering::Relaxed);
    }
}

impl<'a> ProgressMeter<'a> {
    /// A meter for `passes` passes over `inputs`.
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

    /// Has the files hashed while they are read.
    #[must_use]
    pub(crate) fn with_origins(mut self, origins: Arc<InputOrigins>) -> Self {
        self.observer.origins = Some(origins);
        self
    }

    /// The pass that begins now.
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
