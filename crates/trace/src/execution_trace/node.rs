//! One node of an execution trace, and the process groups.

use super::collective::NodeCollective;
use super::value::{Argument, TraceValue};
use crate::store::StringId;

/// A node: an operator, a labelled range, a thread or the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Ids ascend with the start of execution.
    pub id: u64,
    /// Id of the node around it; the process is its own.
    pub parent: u64,
    pub name: StringId,
    /// `rf_id`: what joins it to Kineto's `Record function id`; 0 for threads and the process.
    pub record_function: u64,
    /// `fw_parent`: the node open on the forward thread; 0 if none.
    pub forward_parent: u64,
    /// `seq_id`, joining forward to backward operators; −1 if none.
    pub sequence: i64,
    pub scope: RecordScope,
    /// PyTorch's own number of the thread, from 1.
    pub thread: u64,
    /// The thread of the forward operator; 0 if none.
    pub forward_thread: u64,
    /// Signature in the registry; empty for what is not registered.
    pub op_schema: StringId,
    /// Such as `triton`; empty if unknown.
    pub kernel_backend: StringId,
    /// Generated source of the kernel; empty if unknown.
    pub kernel_file: StringId,
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    /// What a `record_param_comms` node moves.
    pub collective: Option<Box<NodeCollective>>,
    /// Every other attribute, in the order of the file.
    pub rest: Vec<(StringId, TraceValue)>,
}

/// What opened a node; PyTorch's `RecordScope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordScope {
    #[default]
    Function,
    /// 1: an operator of autograd.
    BackwardFunction,
    /// 7: a label of the user or the framework.
    User,
    Other(u64),
}

/// A process group, from the node `## process_group:init ##`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    /// Its description; empty if unknown.
    pub description: String,
    /// Such as `cuda:nccl`; empty if unknown.
    pub backend: String,
    /// Its members; empty stands for all ranks.
    pub ranks: Vec<u32>,
    pub size: Option<u32>,
}

impl RecordScope {
    /// The scope of PyTorch's number.
    pub fn new(number: u64) -> Self {
        match number {
            0 => Self::Function,
            1 => Self::BackwardFunction,
            7 => Self::User,
            other => Self::Other(other),
        }
    }
}
