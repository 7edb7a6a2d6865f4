//! Reads and writes PyTorch execution traces, which list the operators that ran, their tensors, and
//! how they nest.
//!
//! One in-memory form covers all schemas from 1.0.0 to 1.1.1-chakra. Execution traces contain no
//! times, so [`crate::link`] joins them to the Kineto trace, which does. `read` parses the JSON,
//! and `write` writes the steps of rowmill's own recorder. The simulator reconstructs the data flow
//! through shared storages.

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

/// Reads one execution trace from its JSON text. Slightly broken text is repaired. Nodes that
/// cannot be repaired are dropped and counted in [`ExecutionTrace::losses`].
///
/// # Errors
/// [`Error::NotATrace`] if the text has no list of nodes.
pub fn read_text(text: &[u8]) -> Result<ExecutionTrace, Error> {
    read::parse(text)
}
