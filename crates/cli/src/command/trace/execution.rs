//! `rowmill trace execution-trace`: what execution traces hold, and how they link to a timeline.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trace::execution_trace::{self, ExecutionTrace};
use trace::link::{self, Method};

use crate::error::Error;
use crate::resolve::Session;
use crate::resolve::trace::read;
use crate::sheet::{self, Target};

/// One execution trace.
#[derive(Serialize)]
struct GraphRow {
    rank: u32,
    file: String,
    schema: String,
    nodes: usize,
    /// By the definition of facebookresearch/param.
    operators: usize,
    /// Operators without an operator around them.
    top_operators: usize,
    threads: usize,
    process_groups: usize,
    tensors: usize,
    /// `record_function` or `order`; none without a timeline of the rank.
    linked_by: Option<&'static str>,
    nodes_linked_pct: Option<f64>,
    rows_linked_pct: Option<f64>,
    repetitions: Option<usize>,
}

/// Runs the command.
pub fn run(
    paths: &[PathBuf],
    kineto: &[PathBuf],
    output: Option<&Path>,
    session: &Session,
) -> Result<(), Error> {
    let mut graphs: Vec<ExecutionTrace> = Vec::new();
    for path in paths {
        graphs.extend(execution_trace::read(path)?);
    }
    graphs.sort_by_key(|graph| graph.rank);
    let job = if kineto.is_empty() { None } else { Some(read(kineto, session)?) };
    let rows: Vec<GraphRow> = graphs
        .iter()
        .map(|graph| {
            let trace = job.iter().flat_map(|job| &job.traces).find(|t| t.rank == graph.rank);
            row(graph, trace.map(|trace| link::of(graph, trace)).as_ref())
        })
        .collect();
    sheet::put(session.console, &rows, Target { output, top: None })
}

fn row(graph: &ExecutionTrace, link: Option<&link::Link>) -> GraphRow {
    let tree = graph.tree();
    let percent = |share: f64| (share * 1e6).round() / 1e4;
    GraphRow {
        rank: graph.rank,
        file: graph.origin.to_string(),
        schema: graph.schema.clone(),
        nodes: graph.nodes.len(),
        operators: graph.nodes.iter().filter(|node| graph.is_operator(node)).count(),
        top_operators: tree.operators(graph).len(),
        threads: graph.threads().len(),
        process_groups: graph.groups.len(),
        tensors: graph.nodes.iter().map(|node| node.inputs.len() + node.outputs.len()).sum(),
        linked_by: link.map(|link| match link.method {
            Method::RecordFunction => "record_function",
            Method::Order => "order",
        }),
        nodes_linked_pct: link.and_then(link::Link::node_score).map(percent),
        rows_linked_pct: link.and_then(link::Link::row_score).map(percent),
        repetitions: link.map(|link| 1 + link.repetitions.len()),
    }
}
