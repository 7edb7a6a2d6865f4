//! Spans of our own run, kept in memory until they are written.
//!
//! While a step runs, [`Recorder::push`] stores numbers and nothing else: no text, no file. Knows
//! no file format; see `format` for those.

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
    /// [`Error::NothingRecorded`]; [`Error::Write`], and then `path` is as it was before.
    pub fn write_kineto(&self, path: &Path) -> Result<(), Error> {
        if self.recorded().next().is_none() {
            return Err(Error::NothingRecorded { path: path.to_path_buf() });
        }
        file::put(path, |out| kineto::write(self, out))
    }

    /// Writes step `step` as a PyTorch Execution Trace whose `rf_id`s are the Kineto trace's
    /// `Record function id`s.
    ///
    /// # Errors
    /// [`Error::NothingRecorded`], [`Error::StepNotRecorded`]; [`Error::Write`], and then `path` is
    /// as it was before.
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
