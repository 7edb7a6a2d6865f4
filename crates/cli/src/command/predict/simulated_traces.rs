//! Writes a simulated step as trace files, with one file per rank.

use std::path::Path;

use predict::program::Program;
use predict::simulate::{self, Simulation};
use trace::{export, merge};

use crate::trace_files::export_options;
use setup::error::Error;
use setup::output;

/// Writes a simulated step as traces into a folder, with one file per rank.
pub fn write_traces(
    folder: &Path,
    program: &Program,
    simulation: &Simulation,
) -> Result<(), Error> {
    let _made = output::folder(folder)?;
    // Traces of some ranks look like those of a smaller job, so Ctrl-C removes all of them.
    let mut written = Vec::new();
    for trace in simulate::traces(program, simulation) {
        let path = folder.join(format!("rank-{}.json", trace.rank));
        written.push(output::cleared_up_beside(path.clone()));
        export::write(&path, &merge::alone(&trace), &export_options())?;
    }
    Ok(())
}
