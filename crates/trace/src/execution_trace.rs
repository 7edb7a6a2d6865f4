//! PyTorch execution traces: which operators ran, on which tensors, nested in which.
//!
//! The one in-memory form of all schemas, 1.0.0 to 1.1.1-chakra. Knows no times (they are in the
//! Kineto trace, see [`crate::link`]) and no file format (`format::execution_trace::read`).
//! Dependencies through storages are left to the simulator.

mod collective;
mod node;
mod open;
mod read;
mod recorded;
mod tree;
mod value;
pub(crate) mod write;

pub use collective::NodeCollective;
pub use node::{Node, ProcessGroup, RecordScope};
pub use open::read;
pub use recorded::ExecutionTrace;
pub use tree::NodeForest;
pub use value::{Argument, NodeTensor, TraceValue};

use crate::Error;

/// Reads one execution trace from its JSON text. Slightly broken text is repaired, or the nodes
/// that are whole are kept; [`ExecutionTrace::losses`] counts what was not.
///
/// # Errors
/// [`Error::NotATrace`] if the text has no list of nodes.
pub fn read_text(text: &[u8]) -> Result<ExecutionTrace, Error> {
    read::parse(text)
}
