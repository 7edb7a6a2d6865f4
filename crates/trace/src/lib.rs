//! Files and facts: the spans of our own runs, and the trace files they become.
//!
//! Owns the recorder and the Kineto and execution-trace formats. Knows the trainer's
//! [`schema::Op`], but neither the trainer, nor any device, nor what an analysis will make of the
//! rows.

mod error;
mod file;
mod format;
pub mod record;

pub use error::Error;
pub use record::{Clock, OpSpan, Recorder, RunInfo};
