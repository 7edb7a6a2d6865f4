//! The command `rowmill predict step`, which predicts a recorded step from a calibration.

use std::path::Path;

use predict::prediction::{self, PredictedStepRow};
use predict::recording::Span;

use super::calibrated::{CalibratedStep, predict_with_progress, read_step, warn_of_other_job};
use super::simulated_traces::write_traces;
use crate::args::PredictStep;
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{Steps, open_recordings, whole_scopes};
use setup::step_times::Measured;
use setup::table_output::{self, TableTarget};

/// Predicts a recorded step with the calibration in a file, and prints it.
pub fn run(calibration: &Path, args: &PredictStep, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let CalibratedStep { step, calibration, steps } =
        read_step(Some(calibration), args.selection, &traces, &scopes, session)?;
    report_steps(&steps, session);
    let mut prediction = predict_with_progress(args.draws, session, |draws| {
        prediction::predict_step(&step, &calibration, draws)
    })?;
    warn_of_other_job(&prediction.rows, session);
    for (row, spans) in prediction.rows.iter_mut().zip(&steps.spans) {
        add_spread(row, spans);
    }
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &step.program, &prediction.simulation)?;
    }
    table_output::write_rows(session.console, &prediction.rows, TableTarget::default())
}

fn report_steps(steps: &Steps, session: &Session) {
    let what = match steps.mark {
        Some(mark) => mark.source().unwrap_or("ProfilerStep"),
        None => "the whole recording, because no steps are marked",
    };
    session.console.detail(format_args!("{} steps, by {what}", steps.count()));
}

/// Adds how much the recorded steps differ, and the error of the baseline, which predicts the mean
/// of all recorded steps.
fn add_spread(row: &mut PredictedStepRow, spans: &[Span]) {
    if spans.len() < 2 {
        return;
    }
    let Measured { mean_ns, noise_pct, .. } = Measured::from_spans(row.rank, spans);
    let measured_ns = row.measured_ns.unwrap_or_default().max(1) as f64;
    row.noise_pct = Some(noise_pct);
    row.baseline_error_pct = Some(100.0 * (mean_ns - measured_ns) / measured_ns);
}
