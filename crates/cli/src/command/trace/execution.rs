//! The command `rowmill trace execution-trace`, which describes execution traces and their links to
//! a timeline.

use std::path::{Path, PathBuf};

use schema::TableRow;
use serde::Serialize;
use trace::chakra::{self, Graph};
use trace::execution_trace::{self, ExecutionTrace};
use trace::link::{self, LinkMethod};
use trace::store::{Loss, Losses, TraceOrigin};

use setup::Session;
use setup::error::Error;
use setup::open_job::{Extent, open_job, report_missing};
use setup::table_output::{self, TableTarget};

/// The execution trace of one rank, with the number of its operators that are linked to the
/// timeline.
#[derive(Serialize, TableRow)]
pub struct GraphRow {
    rank: u32,
    file: String,
    schema: String,
    nodes: usize,
    /// Number of operators, as facebookresearch/param defines them.
    operators: Option<usize>,
    /// Number of operators that are not inside another operator.
    top_operators: Option<usize>,
    threads: Option<usize>,
    process_groups: Option<usize>,
    tensors: Option<usize>,
    /// The method by which operators were linked: `record_function` or `order`. `None` if the rank
    /// has no timeline.
    linked_by: Option<&'static str>,
    nodes_linked_pct: Option<f64>,
    rows_linked_pct: Option<f64>,
    repetitions: Option<usize>,
}

/// Runs `rowmill trace execution-trace` and prints its result.
pub fn run(
    paths: &[PathBuf],
    kineto: &[PathBuf],
    output: Option<&Path>,
    session: &Session,
) -> Result<(), Error> {
    let mut graphs: Vec<ExecutionTrace> = Vec::new();
    let mut rows: Vec<GraphRow> = Vec::new();
    let mut cut: Vec<String> = Vec::new();
    for path in paths {
        match execution_trace::read(path) {
            Ok(found) => graphs.extend(found),
            // If the file is not a Chakra trace either, the first of the two errors is the more
            // helpful one.
            Err(error) => match chakra::read(path) {
                Ok(found) => {
                    let describe_loss = |graph: &Graph| {
                        describe_missing(&graph.origin, &graph.losses, graph.nodes.len())
                    };
                    cut.extend(found.iter().filter_map(describe_loss));
                    rows.extend(found.iter().map(chakra_row));
                }
                Err(_) => return Err(error.into()),
            },
        }
    }
    graphs.sort_by_key(|graph| graph.rank);
    cut.extend(
        graphs
            .iter()
            .filter_map(|graph| describe_missing(&graph.origin, &graph.losses, graph.nodes.len())),
    );
    let job = if kineto.is_empty() {
        None
    } else {
        Some(open_job(kineto, Extent::Covered, session)?.job)
    };
    rows.extend(graphs.iter().map(|graph| {
        let trace = job.iter().flat_map(|job| &job.traces).find(|t| t.rank == graph.rank);
        graph_row(graph, trace.map(|trace| link::join(graph, trace)).as_ref())
    }));
    let target = TableTarget { output, top: None };
    let missing = (!cut.is_empty()).then(|| cut.join("; "));
    if let Some(missing) = &missing {
        report_missing(session, missing)?;
    }
    table_output::write_rows_with_cut_notice(session.console, &rows, target, missing.as_deref())
}

/// Describes the missing part of a file. Returns `None` if the file is complete.
fn describe_missing(origin: &TraceOrigin, losses: &Losses, nodes: usize) -> Option<String> {
    let cut = losses.iter().find(|(loss, _)| matches!(loss, Loss::Truncated | Loss::Damaged));
    let (_, count) = cut?;
    let why = count.first.first().map_or("", String::as_str);
    Some(format!(
        "{origin}: the execution trace was cut ({why}); all figures cover the {nodes} nodes that were read"
    ))
}

fn graph_row(graph: &ExecutionTrace, link: Option<&link::TraceLink>) -> GraphRow {
    let tree = execution_trace::NodeForest::build(&graph.nodes);
    let percent = |share: f64| (share * 1e6).round() / 1e4;
    GraphRow {
        rank: graph.rank,
        file: graph.origin.to_string(),
        schema: graph.schema.clone(),
        nodes: graph.nodes.len(),
        operators: Some(graph.nodes.iter().filter(|node| graph.is_operator(node)).count()),
        top_operators: Some(tree.operators(graph).len()),
        threads: Some(graph.threads().len()),
        process_groups: Some(graph.groups.len()),
        tensors: Some(graph.nodes.iter().map(|node| node.inputs.len() + node.outputs.len()).sum()),
        linked_by: link.map(|link| match link.method {
            LinkMethod::RecordFunction => "record_function",
            LinkMethod::Order => "order",
        }),
        nodes_linked_pct: link.and_then(link::TraceLink::node_score).map(percent),
        rows_linked_pct: link.and_then(link::TraceLink::row_score).map(percent),
        repetitions: link.map(|link| 1 + link.repetitions.len()),
    }
}

/// Builds the row of a Chakra graph. A Chakra graph has no threads, tensors or operators, only
/// nodes that depend on each other.
fn chakra_row(graph: &Graph) -> GraphRow {
    GraphRow {
        rank: graph.rank,
        file: graph.origin.to_string(),
        schema: format!("chakra {}", graph.version),
        nodes: graph.nodes.len(),
        operators: None,
        top_operators: None,
        threads: None,
        process_groups: None,
        tensors: None,
        linked_by: None,
        nodes_linked_pct: None,
        rows_linked_pct: None,
        repetitions: None,
    }
}
