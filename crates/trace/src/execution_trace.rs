//! PyTorch execution traces: which operators ran, on which tensors, and how they nest.
//!
//! One in-memory form covers all schemas from 1.0.0 to 1.1.1-chakra. Times are not part of it: they
//! are in the Kineto trace, which [`crate::link`] joins to it. `read` parses the JSON, `write`
//! writes the steps of our own recorder. Data flow through shared storages is reconstructed by the
//! simulator.

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

/// Reads one execution trace from its JSON text. Slightly broken text is repaired. If that fails,
/// the intact nodes are kept, and [`ExecutionTrace::losses`] counts the rest.
///
/// # Errors
/// [`Error::NotATrace`] if the text has no list of nodes.
pub fn read_text(text: &[u8]) -> Result<ExecutionTrace, Error> {
    read::parse(text)
}
