//! Writes one recorded step as a PyTorch execution trace, schema 1.1.1-chakra.0.0.4 (decision
//! 0006).
//!
//! Nodes nest as process → thread → `ProfilerStep#N` → operations. Tensors have shapes and sizes,
//! but operations never share a tensor, because [`schema::Op`] does not state which result an
//! operation reads. The file therefore states no data flow, and only file order and ids give the
//! order of execution.

mod calendar;
mod node;

use std::io::{self, Write};

use schema::{GemmProduct, Op, Pass};

use crate::format::collective;
use crate::format::identity::{self, NumberedStep, OperationIdentity};
use crate::format::tensor;
use crate::record::{OpSpan, Recorder, RunInfo};
use node::{Attribute, Endpoints, IdCounter, WrittenNode};

const SCHEMA: &str = "1.1.1-chakra.0.0.4";
/// Names of the process node and the thread node, by which readers recognize these nodes.
const PROCESS: &str = "[pytorch|profiler|execution_trace|process]";
const THREAD: &str = "[pytorch|profiler|execution_trace|thread]";
/// Id of the process root. The ids of all other nodes are larger.
const ROOT: u64 = 1;
/// Number of the main thread in PyTorch's own count of threads.
const MAIN_THREAD: u64 = 1;

/// The values of PyTorch's `RecordScope` that rowmill writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenScope {
    Function = 0,
    BackwardFunction = 1,
    User = 7,
}

/// Writes the recorded step with index `index`, or nothing if there are fewer steps.
///
/// # Errors
/// Returns the errors of writing to `out`.
pub fn write_step(recorder: &Recorder, index: usize, out: &mut impl Write) -> io::Result<()> {
    let info = recorder.info();
    let Some(numbered) = identity::number(recorder).nth(index) else {
        return Ok(());
    };
    let (begin, end) = (numbered.step.begin.0, numbered.step.end.0);
    let time = calendar::date_and_time(info.base_time_ns.saturating_add(begin));
    writeln!(out, "{{\n  \"schema\": \"{SCHEMA}\", \"pid\": {}, \"time\": \"{time}\",", info.pid)?;
    writeln!(out, "  \"start_ts\": {},\n  \"nodes\": [", begin.div_euclid(1_000_000))?;
    for node in nodes(info, &numbered, recorder.spans_of(numbered.step)) {
        writeln!(out, "    {},", serde_json::to_string(&node)?)?;
    }
    let process = WrittenNode {
        id: ROOT,
        name: PROCESS.to_owned(),
        ctrl_deps: ROOT,
        inputs: Endpoints::default(),
        outputs: Endpoints::default(),
        attrs: attributes(0, WrittenScope::User, ""),
    };
    writeln!(out, "    {}", serde_json::to_string(&process)?)?;
    writeln!(out, "  ],\n  \"finish_ts\": {}\n}}", end.div_euclid(1_000_000))
}

/// Lists all nodes except the process root. As in PyTorch's files, children come before their
/// parent.
fn nodes(info: &RunInfo, numbered: &NumberedStep<'_>, spans: &[OpSpan]) -> Vec<WrittenNode> {
    let mut ids = IdCounter::after(ROOT);
    let thread = ids.next();
    let step = ids.next();
    let mut nodes = Vec::with_capacity(spans.len() + 2);
    nodes.push(WrittenNode {
        id: thread,
        name: THREAD.to_owned(),
        ctrl_deps: ROOT,
        inputs: Endpoints::default(),
        outputs: Endpoints::default(),
        attrs: attributes(0, WrittenScope::User, ""),
    });
    // The ids of thread and step are smaller, because both started before the operations.
    for (span, identity) in spans.iter().zip(&numbered.operations) {
        nodes.push(operation(info, step, &mut ids, &span.op, *identity));
    }
    nodes.push(WrittenNode {
        id: step,
        name: format!("ProfilerStep#{}", numbered.step.number),
        ctrl_deps: thread,
        inputs: Endpoints::default(),
        outputs: Endpoints::default(),
        attrs: attributes(numbered.record_function, WrittenScope::User, ""),
    });
    nodes
}

fn operation(
    info: &RunInfo,
    parent: u64,
    ids: &mut IdCounter,
    op: &Op,
    identity: OperationIdentity,
) -> WrittenNode {
    let inputs = Endpoints::new(&tensor::inputs(op), ids);
    let id = ids.next();
    let outputs = Endpoints::new(&tensor::outputs(op), ids);
    let signature = signature(op, &inputs, &outputs);
    let mut attrs = attributes(identity.record_function, scope(op), &signature);
    attrs.extend(collective_attributes(info, op));
    WrittenNode {
        id,
        name: format!("rowmill::{}", op.name()),
        ctrl_deps: parent,
        inputs,
        outputs,
        attrs,
    }
}

/// Formats the signature of the operation as a TorchScript schema.
fn signature(op: &Op, inputs: &Endpoints, outputs: &Endpoints) -> String {
    let arguments: Vec<String> =
        (0..inputs.count()).map(|index| format!("Tensor input_{index}")).collect();
    let result = if outputs.count() == 0 { "()" } else { "Tensor" };
    format!("rowmill::{}({}) -> {result}", op.name(), arguments.join(", "))
}

fn attributes(rf_id: u64, scope: WrittenScope, signature: &str) -> Vec<Attribute> {
    let forward_thread = if scope == WrittenScope::BackwardFunction { MAIN_THREAD } else { 0 };
    vec![
        Attribute::unsigned("rf_id", rf_id),
        Attribute::unsigned("fw_parent", 0),
        Attribute::signed("seq_id", -1),
        Attribute::unsigned("scope", scope as u64),
        Attribute::unsigned("tid", MAIN_THREAD),
        Attribute::unsigned("fw_tid", forward_thread),
        Attribute::text("op_schema", signature),
        Attribute::text("kernel_backend", ""),
        Attribute::text("kernel_file", ""),
    ]
}

fn collective_attributes(info: &RunInfo, op: &Op) -> Vec<Attribute> {
    let Some(collective) = collective::describe(op) else {
        return Vec::new();
    };
    let mut attributes = vec![
        Attribute::text("collective_name", collective.name),
        Attribute::text("dtype", collective.dtype),
        Attribute::unsigned("in_msg_nelems", collective.elements_in as u64),
    ];
    if let Some(elements) = collective.elements_out {
        attributes.push(Attribute::unsigned("out_msg_nelems", elements as u64));
    }
    attributes.extend([
        Attribute::unsigned("global_rank_start", 0),
        Attribute::unsigned("global_rank_stride", 1),
        Attribute::text("pg_name", "0"),
        Attribute::text("pg_desc", "default_pg"),
        Attribute::unsigned("pg_size", u64::from(info.world_size)),
    ]);
    attributes
}

fn scope(op: &Op) -> WrittenScope {
    match op {
        Op::GradientDist { .. }
        | Op::EmbeddingBackward { .. }
        | Op::Gemm { product: GemmProduct::BackwardInput | GemmProduct::BackwardWeight, .. }
        | Op::ReluBackward { .. }
        | Op::Interaction { pass: Pass::Backward, .. }
        | Op::Concat { pass: Pass::Backward, .. }
        | Op::Cross { pass: Pass::Backward, .. } => WrittenScope::BackwardFunction,
        _ => WrittenScope::Function,
    }
}
