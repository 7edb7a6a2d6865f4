//! Predicts a step at another size, such as a batch size, from recordings at two sizes.

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

/// A recording at one size.
pub struct Recorded {
    step: Step,
    pub calibration: Calibration,
    /// Mean step of each rank.
    pub means_ns: Vec<f64>,
}

/// The step at another size, by what both recordings cost.
pub fn between_recordings(
    (small, large): (&Recorded, &Recorded),
    (from, until): (u64, u64),
    (to, draws): (u64, Draws),
) -> Result<Prediction, Error> {
    let mut known = small.calibration.clone();
    known.merge(large.calibration.clone());
    let first = Sized { program: &small.step.program, size: from };
    let second = Sized { program: &large.step.program, size: until };
    let program = between(first, second, to)?;
    let setting = small.step.recorded.setting(&small.step.program);
    Ok(prediction::predict_program(&program, &setting, &known, draws)?)
}

/// Reads a recording at one size.
pub fn recorded(path: &PathBuf, session: &Session) -> Result<Recorded, Error> {
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
    Ok(Recorded { step, calibration, means_ns: steps.spans.iter().map(mean).collect() })
}
