//! Records the spans of our own runs in memory, until they are written to files.
//!
//! During a step, [`Recorder::push`] only stores numbers: it formats no text and writes no file.
//! Formats are defined in `format` and `execution_trace`.

mod clock;
mod spans;

use std::path::Path;

pub use clock::Clock;
pub(crate) use spans::StepSpan;
pub use spans::{OpSpan, Recorder, RunInfo};

use crate::format::kineto;
use crate::{Error, execution_trace, file};

impl Recorder {
    /// Writes all steps as a Kineto trace (Chrome JSON).
    ///
    /// # Errors
    /// [`Error::NothingRecorded`]; [`Error::Write`], and then `path` is unchanged.
    pub fn write_kineto(&self, path: &Path) -> Result<(), Error> {
        if self.recorded().next().is_none() {
            return Err(Error::NothingRecorded { path: path.to_path_buf() });
        }
        file::put(path, |out| kineto::write(self, out))
    }

    /// Writes step `step` as a PyTorch execution trace. Its `rf_id`s equal the `Record function
    /// id`s of the Kineto trace.
    ///
    /// # Errors
    /// [`Error::NothingRecorded`], [`Error::StepNotRecorded`]; [`Error::Write`], and then `path` is
    /// unchanged.
    pub fn write_execution_trace(&self, step: u64, path: &Path) -> Result<(), Error> {
        let path_buf = path.to_path_buf();
        let mut numbers = self.steps();
        let Some(first) = numbers.next() else {
            return Err(Error::NothingRecorded { path: path_buf });
        };
        let last = numbers.last().unwrap_or(first);
        let Some(index) = self.recorded().position(|recorded| recorded.number == step) else {
            return Err(Error::StepNotRecorded { path: path_buf, step, first, last });
        };
        file::put(path, |out| execution_trace::write::write_step(self, index, out))
    }
}
