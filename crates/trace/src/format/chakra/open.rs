//! Paths to Chakra execution traces.

use std::path::Path;

use super::{Graph, read_bytes};
use crate::Error;

/// Reads all Chakra execution traces of a file, an archive or a folder, in the order of names.
///
/// # Errors
/// [`Error::Read`] for a file that cannot be read, [`Error::NotATrace`] for a single file that is
/// none, [`Error::NoTraces`] for a folder or an archive without any.
pub fn read(path: &Path) -> Result<Vec<Graph>, Error> {
    let failed = |source| Error::Read { path: path.to_path_buf(), source };
    let mut graphs = Vec::new();
    for (member, bytes) in crate::execution_trace::texts(path, ".et").map_err(failed)? {
        let mut graph = read_bytes(&bytes)?;
        graph.origin.path = path.to_path_buf();
        graph.origin.member = member;
        graphs.push(graph);
    }
    Ok(graphs)
}
