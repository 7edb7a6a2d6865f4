//! Finds the execution traces under a path, and assigns their ranks.

use std::path::Path;

use super::{ExecutionTrace, read_text};
use crate::Error;
use crate::open::document::{self, DocumentFormat};
use crate::open::{has_extension, looks_like};

/// Reads all execution traces in a file, an archive or a folder, ordered by rank.
///
/// # Errors
/// - [`Error::Read`] if a file cannot be read.
/// - [`Error::Empty`] and [`Error::NotATrace`] if `path` names a file that is not an execution
///   trace.
/// - [`Error::NoTraces`] for a folder or an archive without an execution trace.
pub fn read(path: &Path) -> Result<Vec<ExecutionTrace>, Error> {
    let format = DocumentFormat {
        wanted: |name| has_extension(name, &[".json"]),
        read: |text| match read_text(text) {
            // Other JSON files may have a key `nodes` too, so an empty trace needs a schema.
            Ok(trace) if !trace.nodes.is_empty() || !trace.schema.is_empty() => Ok(trace),
            _ => Err(format!("got {}", looks_like(text))),
        },
        label: |trace: &mut ExecutionTrace| (&mut trace.origin, &mut trace.losses),
    };
    let mut traces = document::read(path, &format)?;
    let claims: Vec<_> = traces.iter().map(|one| (one.origin.clone(), claim(one))).collect();
    for (trace, (rank, losses)) in traces.iter_mut().zip(document::assign_ranks(&claims)) {
        trace.rank = rank;
        trace.losses.append(losses);
    }
    traces.sort_by_key(|trace| trace.rank);
    Ok(traces)
}

/// Returns the rank that the trace itself claims, which is its rank in the largest process group in
/// which it communicates.
fn claim(trace: &ExecutionTrace) -> Option<u32> {
    let collectives = trace.nodes.iter().filter_map(|node| node.collective.as_deref());
    let numbered = collectives.filter(|collective| collective.rank.is_some());
    let largest = numbered
        .reduce(|largest, next| if next.group_size > largest.group_size { next } else { largest });
    largest.and_then(|collective| collective.rank)
}
