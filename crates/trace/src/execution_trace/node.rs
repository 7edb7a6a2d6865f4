//! The nodes of an execution trace, and its process groups.

use super::collective::NodeCollective;
use super::value::{Argument, TraceValue};
use crate::store::StringId;

/// A node of the trace: an operator, a labeled range, a thread or the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Ids ascend in the order in which execution started.
    pub id: u64,
    /// Id of the enclosing node. The process is its own parent.
    pub parent: u64,
    pub name: StringId,
    /// `rf_id`, which equals Kineto's `Record function id`; 0 for threads and the process.
    pub record_function: u64,
    /// `fw_parent`: the node that was open on the forward thread; 0 if there was none.
    pub forward_parent: u64,
    /// `seq_id`, shared by a forward operator and its backward operators; −1 if absent.
    pub sequence: i64,
    pub scope: RecordScope,
    /// PyTorch's internal number of the thread, counted from 1.
    pub thread: u64,
    /// Thread of the forward operator; 0 if unknown.
    pub forward_thread: u64,
    /// Signature in PyTorch's operator registry; empty for unregistered nodes.
    pub op_schema: StringId,
    /// Such as `triton`; empty if unknown.
    pub kernel_backend: StringId,
    /// Generated source file of the kernel; empty if unknown.
    pub kernel_file: StringId,
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    /// Set on `record_param_comms` nodes.
    pub collective: Option<Box<NodeCollective>>,
    /// All other attributes, in file order.
    pub rest: Vec<(StringId, TraceValue)>,
}

/// The code that opened a node, as PyTorch's `RecordScope` numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordScope {
    #[default]
    Function,
    /// Number 1: an operator run by autograd.
    BackwardFunction,
    /// Number 7: a label set by the user or a framework.
    User,
    Other(u64),
}

/// A process group, read from the node `## process_group:init ##`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    pub description: String,
    /// Such as `cuda:nccl`; empty if unknown.
    pub backend: String,
    /// Global ranks of the members; empty means all ranks.
    pub ranks: Vec<u32>,
    pub size: Option<u32>,
}

impl RecordScope {
    /// Converts PyTorch's number of a scope.
    pub fn new(number: u64) -> Self {
        match number {
            0 => Self::Function,
            1 => Self::BackwardFunction,
            7 => Self::User,
            other => Self::Other(other),
        }
    }
}
