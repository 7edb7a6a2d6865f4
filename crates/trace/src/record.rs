//! Records the spans of rowmill's own runs in memory until they are written to files.
//!
//! During a step, [`Recorder::push`] only stores numbers: it formats no text and writes no file.
//! The file formats are defined in `format` and `execution_trace`.

mod clock;
mod spans;

use std::path::Path;

pub use clock::Clock;
pub(crate) use spans::StepSpan;
pub use spans::{ExchangeSpan, ExchangeWork, OpSpan, Recorder, RunInfo};

use crate::format::kineto;
use crate::{Error, execution_trace, file};

impl Recorder {
    /// Writes all recorded steps as a Kineto trace (Chrome JSON).
    ///
    /// # Errors
    /// [`Error::NothingRecorded`] if there is no step. [`Error::Write`] if writing fails, and then
    /// the file at `path` is unchanged.
    pub fn write_kineto(&self, path: &Path) -> Result<(), Error> {
        if self.recorded().next().is_none() {
            return Err(Error::NothingRecorded { path: path.to_path_buf() });
        }
        file::put(path, |out| kineto::write(self, out))
    }

    /// Writes all recorded steps like [`Self::write_kineto`], as the answer to the order with the
    /// id `trace_id`, and forgets them.
    ///
    /// # Errors
    /// As for [`Self::write_kineto`]. The steps are forgotten nevertheless.
    pub fn write_ordered(&mut self, trace_id: &str, path: &Path) -> Result<(), Error> {
        self.trace_id = Some(trace_id.to_owned());
        let written = self.write_kineto(path);
        self.clear();
        written
    }

    /// Writes step `step` as a PyTorch execution trace. The `rf_id`s of its nodes equal the `Record
    /// function id`s of the same operators in the Kineto trace.
    ///
    /// # Errors
    /// [`Error::NothingRecorded`] or [`Error::StepNotRecorded`] if there is no such step.
    /// [`Error::Write`] if writing fails, and then the file at `path` is unchanged.
    pub fn write_execution_trace(&self, step: u64, path: &Path) -> Result<(), Error> {
        let path_buf = path.to_path_buf();
        let mut numbers = self.steps();
        let Some(first) = numbers.next() else {
            return Err(Error::NothingRecorded { path: path_buf });
        };
        // The error names the recorded range, so that the user can choose another step.
        let last = numbers.last().unwrap_or(first);
        let Some(index) = self.recorded().position(|recorded| recorded.number == step) else {
            return Err(Error::StepNotRecorded { path: path_buf, step, first, last });
        };
        file::put(path, |out| execution_trace::write::write_step(self, index, out))
    }
}
