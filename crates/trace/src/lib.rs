//! Reads, stores and writes traces, and records the spans of rowmill's own runs.
//!
//! [`open::read`] reads any file of PyTorch's profiler into a [`store::Job`]. [`Recorder`] writes
//! the spans of a training run to trace files. The crate knows the trainer's [`schema::Op`], but it
//! does not depend on the trainer or on devices, and it does not analyze traces.

mod error;
pub mod execution_trace;
pub mod export;
pub mod file;
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
pub use record::{Clock, ExchangeSpan, ExchangeWork, OpSpan, Recorder, RunInfo};
