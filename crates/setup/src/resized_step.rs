//! Reads recordings at two sizes, from which steps at other sizes are predicted.

use std::path::PathBuf;

use predict::edit::resize::SizedStep;

use crate::Session;
use crate::error::Error;
use crate::recorded_steps::{
    Steps, calibrate_steps, open_recordings, prepare_job, recorded_machine, whole_scopes,
};

/// The recorded steps of a job at one size.
pub struct SizedRecording {
    pub sized: SizedStep,
    /// The mean duration of the steps of each rank.
    pub means_ns: Vec<f64>,
}

/// Reads the recording at `path`, which was made at `size`.
///
/// # Errors
/// Returns an error if no trace can be read, or if a rank has no steps.
pub fn read_recording(
    path: &PathBuf,
    size: u64,
    session: &Session,
) -> Result<SizedRecording, Error> {
    let traces = open_recordings(std::slice::from_ref(path), session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let job = prepare_job(&scopes, session);
    let mut calibration = calibrate_steps(&job, &steps, traces.len())?;
    calibration.machine = recorded_machine(&traces);
    let mean = |spans: &Vec<predict::recording::Span>| {
        let sum: i64 = spans.iter().map(|span| span.end - span.start).sum();
        sum as f64 / spans.len().max(1) as f64
    };
    let step = job.step(&steps.spans_of_step(0))?;
    let sized = SizedStep { size, step, calibration };
    Ok(SizedRecording { sized, means_ns: steps.spans.iter().map(mean).collect() })
}
