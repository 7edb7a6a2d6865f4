//! Finds the Chakra execution traces under a path, and assigns their ranks.

use std::path::Path;

use super::{Graph, read_bytes};
use crate::Error;
use crate::open::document::{self, DocumentFormat};
use crate::open::{has_extension, looks_like};

/// Reads all Chakra execution traces in a file, an archive or a folder, ordered by rank.
///
/// # Errors
/// - [`Error::Read`] if a file cannot be read.
/// - [`Error::Empty`] and [`Error::NotATrace`] if `path` names a file that is not a Chakra trace.
/// - [`Error::NoTraces`] for a folder or an archive without a Chakra trace.
pub fn read(path: &Path) -> Result<Vec<Graph>, Error> {
    let format = DocumentFormat {
        wanted: |name| has_extension(name, &[".et"]),
        read: |bytes| read_bytes(bytes).map_err(|_| format!("got {}", looks_like(bytes))),
        label: |graph: &mut Graph| (&mut graph.origin, &mut graph.losses),
    };
    let mut graphs = document::read(path, &format)?;
    // The content of a Chakra file does not state its rank, so only the name can claim one.
    let claims: Vec<_> = graphs.iter().map(|graph| (graph.origin.clone(), None)).collect();
    for (graph, (rank, losses)) in graphs.iter_mut().zip(document::assign_ranks(&claims)) {
        graph.rank = rank;
        graph.losses.append(losses);
    }
    graphs.sort_by_key(|graph| graph.rank);
    Ok(graphs)
}
