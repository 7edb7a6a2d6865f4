//! Writes the recorded steps of a benchmark as a trace for other commands.

use std::path::Path;

use trace::{Recorder, RunInfo};

use bench::steps::BenchStep;
use setup::error::Error;
use setup::output;

/// Writes the steps, numbered from 0, as a trace in a folder.
pub fn write<'a>(
    folder: &Path,
    steps: impl Iterator<Item = &'a BenchStep>,
    info: RunInfo,
) -> Result<(), Error> {
    let mut recorder = Recorder::new(info);
    for (number, step) in (0u64..).zip(steps) {
        let (Some(first), Some(last)) = (step.spans.first(), step.spans.last()) else { continue };
        recorder.begin_step(number, first.start);
        step.spans.iter().for_each(|span| recorder.push(*span));
        recorder.end_step(last.end);
    }
    let _made = output::folder(folder)?;
    let path = folder.join("kineto_rank0.json");
    let _begun = output::cleared_up_beside(path.clone());
    Ok(recorder.write_kineto(&path)?)
}
