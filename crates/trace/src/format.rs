//! The trace formats we write, one file each, and what they share about an operation.

pub mod chakra;
pub mod execution_trace;
pub mod kineto;
pub mod perfetto;

mod collective;
mod identity;
mod tensor;
