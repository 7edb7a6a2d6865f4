//! Defines the `args` of each kind of row that rowmill's own runs write, under Kineto's keys.

use schema::Op;
use serde::Serialize;

use super::row::{DEVICE, STREAM};
use crate::format::collective;
use crate::format::identity::OperationIdentity;
use crate::format::tensor::{self, TensorArgument};
use crate::record::{OpSpan, RunInfo};

/// Arguments of a `ProfilerStep#N` annotation.
#[derive(Serialize)]
pub struct StepArguments {
    #[serde(rename = "External id")]
    pub external_id: u64,
    #[serde(rename = "Record function id")]
    pub record_function_id: u64,
    /// Time during which the thread pool was busy, which equals the sum of the step's kernel rows.
    pub busy_ns: i64,
}

/// Arguments of a `cpu_op` row, which is an operation on the host.
#[derive(Serialize)]
pub struct OperationArguments {
    #[serde(rename = "External id")]
    external_id: u64,
    #[serde(rename = "Record function id")]
    record_function_id: u64,
    #[serde(rename = "Input Dims")]
    input_dims: Vec<Vec<usize>>,
    #[serde(rename = "Input type")]
    input_type: Vec<&'static str>,
    flops: u64,
    bytes: u64,
    /// The stage of the step.
    #[serde(rename = "Stage", skip_serializing_if = "Option::is_none")]
    stage: Option<String>,
}

impl OperationArguments {
    /// Describes an operation by the arguments that PyTorch's profiler writes, and by its FLOPs and
    /// bytes.
    pub fn new(span: &OpSpan, identity: OperationIdentity) -> Self {
        let op = &span.op;
        let inputs = tensor::inputs(op);
        let work = op.work();
        Self {
            external_id: identity.record_function,
            record_function_id: identity.record_function,
            input_type: inputs.iter().map(|input| input.element.kineto()).collect(),
            input_dims: inputs.into_iter().map(|TensorArgument { shape, .. }| shape).collect(),
            flops: work.flops,
            bytes: work.bytes,
            stage: span.stage.map(|stage| stage.to_string()),
        }
    }
}

/// Arguments of a `cuda_runtime` row, which is the launch of a kernel.
#[derive(Serialize)]
pub struct LaunchArguments {
    #[serde(rename = "External id")]
    external_id: u64,
    correlation: u64,
    /// Marks the launch as rowmill's, because the row has the name of a CUDA call.
    runtime: &'static str,
}

impl LaunchArguments {
    /// Describes the launch of an operation by the ids that link it to the operation and the
    /// kernel.
    pub fn new(identity: OperationIdentity) -> Self {
        Self {
            external_id: identity.record_function,
            correlation: identity.correlation,
            runtime: "rowmillLaunch",
        }
    }
}

/// Arguments of a kernel row.
#[derive(Serialize)]
pub struct KernelArguments {
    #[serde(rename = "External id")]
    external_id: u64,
    correlation: u64,
    device: u32,
    stream: u64,
    #[serde(flatten)]
    collective: Option<CollectiveArguments>,
}

/// Arguments that Kineto copies from `record_param_comms` to the kernel of a collective.
#[derive(Serialize)]
struct CollectiveArguments {
    #[serde(rename = "Collective name")]
    name: &'static str,
    dtype: &'static str,
    #[serde(rename = "In msg nelems")]
    elements_in: usize,
    #[serde(rename = "Out msg nelems", skip_serializing_if = "Option::is_none")]
    elements_out: Option<usize>,
    #[serde(rename = "Group size")]
    group_size: u32,
    #[serde(rename = "Process Group Name")]
    group_name: &'static str,
    #[serde(rename = "Process Group Description")]
    group_description: &'static str,
    #[serde(rename = "Rank")]
    rank: u32,
    #[serde(rename = "Seq")]
    sequence: u64,
}

impl KernelArguments {
    /// Describes the execution of an operation. Collectives also get the arguments that NCCL
    /// kernels have.
    pub fn new(info: &RunInfo, op: &Op, identity: OperationIdentity) -> Self {
        let collective = collective::describe(op).map(|collective| CollectiveArguments {
            name: collective.name,
            dtype: collective.dtype,
            elements_in: collective.elements_in,
            elements_out: collective.elements_out,
            group_size: info.world_size,
            group_name: "0",
            group_description: "default_pg",
            rank: info.rank,
            sequence: identity.collective,
        });
        Self {
            external_id: identity.record_function,
            correlation: identity.correlation,
            device: DEVICE,
            stream: STREAM,
            collective,
        }
    }
}
