//! Defines the nodes of an execution trace, and its process groups.

use super::collective::NodeCollective;
use super::value::{Argument, TraceValue};
use crate::store::StringId;

/// A node of an execution trace: an operator, a labeled range, a thread or the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Id of the node. Ids ascend in the order in which execution started.
    pub id: u64,
    /// Id of the enclosing node. The process is its own parent.
    pub parent: u64,
    pub name: StringId,
    /// Attribute `rf_id`, which equals Kineto's `Record function id`, or 0 for threads and the
    /// process.
    pub record_function: u64,
    /// Attribute `fw_parent`: the node that was open on the forward thread, or 0 if there was none.
    pub forward_parent: u64,
    /// Attribute `seq_id`, which a forward operator shares with its backward operators, or −1 if
    /// absent.
    pub sequence: i64,
    pub scope: RecordScope,
    /// PyTorch's internal number of the thread, counted from 1.
    pub thread: u64,
    /// Number of the thread on which the forward operator ran, or 0 if it is unknown.
    pub forward_thread: u64,
    /// Signature in PyTorch's operator registry, or an empty text for unregistered nodes.
    pub op_schema: StringId,
    /// Name of the compiler that made the kernel, such as `triton`, or an empty text if unknown.
    pub kernel_backend: StringId,
    /// Path of the kernel's generated source file, or an empty text if unknown.
    pub kernel_file: StringId,
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    /// Message of the collective, which is set on `record_param_comms` nodes only.
    pub collective: Option<Box<NodeCollective>>,
    /// All other attributes, in file order.
    pub rest: Vec<(StringId, TraceValue)>,
}

/// The kind of code that opened a node, as PyTorch's `RecordScope` numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordScope {
    #[default]
    Function,
    /// Number 1: an operator that autograd ran.
    BackwardFunction,
    /// Number 7: a label that the user or a framework set.
    User,
    Other(u64),
}

/// A process group, read from the node `## process_group:init ##`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    pub description: String,
    /// Backend of each device type, such as `cuda:nccl`, or an empty string if unknown.
    pub backend: String,
    /// Global ranks of the members. An empty list means all ranks.
    pub ranks: Vec<u32>,
    pub size: Option<u32>,
}

impl RecordScope {
    /// Converts PyTorch's number of a scope to a [`RecordScope`].
    pub fn new(number: u64) -> Self {
        match number {
            0 => Self::Function,
            1 => Self::BackwardFunction,
            7 => Self::User,
            other => Self::Other(other),
        }
    }
}
