//! Builds programs of steps that were never run from the model to be trained.

pub(crate) mod exchange;
pub mod execution;
pub mod own;
mod program;

pub use program::program;
