//! Files and facts: traces, read, held and written, and the spans of our own runs.
//!
//! [`open::read`] turns whatever PyTorch wrote into a [`store::Job`]; [`Recorder`] turns our own
//! runs into files. Knows the trainer's [`schema::Op`], but neither the trainer, nor any device,
//! nor what an analysis will make of the rows.

mod error;
pub mod execution_trace;
pub mod export;
mod file;
mod format;
mod lanes;
pub mod link;
pub mod merge;
pub mod open;
pub mod packed;
pub mod record;
pub mod store;

pub use error::Error;
pub use format::chakra;
pub use record::{Clock, OpSpan, Recorder, RunInfo};
