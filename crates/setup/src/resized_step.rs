//! Predicts a step at another size, such as another batch size, from recordings at two sizes.

use std::path::PathBuf;

use predict::calibration::Calibration;
use predict::edit::resize::{Sized, between};
use predict::prediction::{self, Draws, Prediction};
use predict::recording::Step;

use crate::Session;
use crate::error::Error;
use crate::recorded_steps::{
    Steps, calibrate_steps, open_recordings, prepare_job, recorded_machine, whole_scopes,
};

/// The recorded steps of a job at one size.
pub struct SizedRecording {
    /// The number that differs between the recordings, such as the batch size.
    size: u64,
    step: Step,
    pub calibration: Calibration,
    /// The mean duration of the steps of each rank.
    pub means_ns: Vec<f64>,
}

/// Predicts the step at `size` from recordings at two other sizes. The two recordings calibrate the
/// prediction.
///
/// # Errors
/// Returns an error if the steps of the two recordings run different operators, or if the
/// prediction fails.
pub fn predict_between(
    small: &SizedRecording,
    large: &SizedRecording,
    size: u64,
    draws: Draws,
) -> Result<Prediction, Error> {
    let mut calibration = small.calibration.clone();
    calibration.merge(large.calibration.clone());
    let first = Sized { program: &small.step.program, size: small.size };
    let second = Sized { program: &large.step.program, size: large.size };
    let program = between(first, second, size)?;
    let setting = small.step.recorded.setting(&small.step.program);
    Ok(prediction::predict_program(&program, &setting, &calibration, draws)?)
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
    Ok(SizedRecording { size, step, calibration, means_ns: steps.spans.iter().map(mean).collect() })
}
