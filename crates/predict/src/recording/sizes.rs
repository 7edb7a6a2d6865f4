//! Tensor sizes of operators: the rows that need them, their form as text, and their bytes.

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::job::{OperatorTensors, Tensors};
use analyze::tree::OperatorTree;
use trace::store::EventKind;

/// Returns the rows whose tensor sizes are needed. The rows are outermost operators, operators that
/// make runtime calls themselves, and collectives.
pub(super) fn rows(scope: &Scope<'_>, tree: &OperatorTree) -> Vec<u32> {
    let trace = scope.trace;
    let names_collective = |row: &u32| tree.contains(*row) && is_collective(trace.name(*row));
    let mut rows = tree.top_operators(trace);
    rows.extend(trace.rows().filter(names_collective));
    let calls = tree.nodes.iter().filter(|row| trace.kind(**row).is_call());
    let calls = calls.filter(|row| !scope.links().work(**row).is_empty());
    rows.extend(calls.filter_map(|row| caller(scope, tree, *row)));
    rows.extend(forward(scope, tree).into_values());
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Finds the forward operators of the backward operators among the outermost ones. The key of the
/// result is the backward row. The profiler records no sizes of a backward operator, but its work
/// depends on those of the forward operator that has the same sequence number.
pub(super) fn forward(scope: &Scope<'_>, tree: &OperatorTree) -> BTreeMap<u32, u32> {
    let slices = &scope.trace.slices;
    let is_backward = |row: u32| slices.forward_thread.get(row).is_some_and(|thread| *thread > 0);
    let mut forward: BTreeMap<i64, u32> = BTreeMap::new();
    let numbered = slices
        .sequence
        .iter()
        .filter(|(row, number)| **number >= 0 && !is_backward(*row) && is_operator(scope, *row));
    // An operator and those that it calls before it has a backward operator share a number. The
    // last one of them has it.
    for (row, number) in numbered {
        let last = forward.entry(*number).or_insert(row);
        *last = (*last).max(row);
    }
    let rows = tree.top_operators(scope.trace).into_iter().filter(|row| is_backward(*row));
    let pair = |row| Some((row, *forward.get(slices.sequence.get(row)?)?));
    rows.filter_map(pair).collect()
}

/// Returns the innermost operator around a runtime call.
pub(super) fn caller(scope: &Scope<'_>, tree: &OperatorTree, call: u32) -> Option<u32> {
    tree.ancestors(call).find(|row| is_operator(scope, *row))
}

fn is_collective(name: &str) -> bool {
    name.starts_with("nccl:") || name == "record_param_comms"
}

/// Formats tensor sizes as text, such as `512x1024 float, 1024`.
pub(super) fn text(tensors: &Tensors) -> String {
    let one = |(at, dims): (usize, &Vec<u64>)| {
        let sizes: Vec<String> = dims.iter().map(ToString::to_string).collect();
        let kind = tensors.types.get(at).map_or("", String::as_str);
        format!("{} {kind}", sizes.join("x")).trim().to_owned()
    };
    let parts: Vec<String> = tensors.dims.iter().enumerate().map(one).collect();
    parts.join(", ").trim_end_matches([',', ' ']).to_owned()
}

/// Computes the total bytes of tensors from their sizes as text.
pub(crate) fn text_bytes(sizes: &str) -> u64 {
    let one = |part: &str| {
        let (dims, kind) = part.split_once(' ').unwrap_or((part, ""));
        let all: Option<Vec<u64>> = dims.split('x').map(|size| size.parse().ok()).collect();
        let elements = all?.into_iter().fold(1u64, u64::saturating_mul);
        Some(elements.saturating_mul(element_bytes(kind)))
    };
    sizes.split(", ").filter_map(one).fold(0, u64::saturating_add)
}

/// Returns the message bytes of a collective from the rows around its kernel's call, or `None` if
/// none of these rows has sizes.
pub(super) fn bytes(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    shapes: &OperatorTensors,
    kernel: u32,
) -> Option<u64> {
    let trace = scope.trace;
    let call = scope.links().call(kernel)?;
    let around = tree.ancestors(call).filter(|row| is_collective(trace.name(*row)));
    let sizes = around.filter_map(|row| shapes.get(&(trace.rank, row)));
    sizes.map(|tensors| text_bytes(&text(tensors))).find(|bytes| *bytes > 0)
}

/// Returns the number of bytes per element of a type. Unknown types count 4 bytes.
fn element_bytes(kind: &str) -> u64 {
    match kind {
        "double" | "long" | "long int" | "c10::complex<float>" => 8,
        "c10::Half" | "c10::BFloat16" | "short" => 2,
        "unsigned char" | "signed char" | "bool" => 1,
        _ => 4,
    }
}

/// Returns whether a row is an operator rather than a label.
pub(super) fn is_operator(scope: &Scope<'_>, row: u32) -> bool {
    scope.trace.kind(row) == EventKind::Operator && !analyze::tree::is_label(scope.trace, row)
}
