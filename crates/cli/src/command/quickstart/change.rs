//! The change that a quickstart tries, which is twice the batch size. The step time is predicted
//! from recordings of smaller batch sizes, then the change is run and measured.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use predict::prediction::{Draws, predict_resized};
use schema::JobConfig;
use serde::Serialize;
use train::run::{RunOutcome, TraceRequest};

use setup::Session;
use setup::error::Error;
use setup::render;
use setup::resized_step::read_recording;
use setup::step_times::{Drift, measured};

/// The range of steps that are recorded for each batch size. The steps before them warm up the
/// caches.
const STEPS: Range<u64> = 12..20;
const DRAWS: Draws = Draws::new(200, 0);

/// The predicted and the measured step time of the changed batch size.
#[derive(Clone, Debug, Serialize)]
pub struct TriedChange {
    batch_size: u64,
    changed_batch_size: u64,
    predicted_ns: i64,
    low_ns: i64,
    high_ns: i64,
    measured_ns: i64,
    error_pct: f64,
    /// Error of the assumption that twice the batch size takes twice the time, in percent.
    linear_error_pct: f64,
    /// Coefficient of variation of the measured steps, in percent.
    noise_pct: f64,
    /// Mean step time of the original batch size before the change, in nanoseconds.
    base_ns: i64,
    /// Mean step time of the original batch size right after the change, in nanoseconds.
    base_again_ns: i64,
    /// Whether the two step times of the original batch size differ so much that another process
    /// must have disturbed the machine.
    was_disturbed: bool,
}

/// Records the batch size and half of it, predicts twice the batch size, and then runs it. Returns
/// `None` if the user interrupts a run.
pub fn try_change(
    job: &JobConfig,
    folder: &Path,
    session: &Session,
    run: &dyn Fn(&JobConfig, PathBuf, TraceRequest) -> Result<RunOutcome, Error>,
) -> Result<Option<TriedChange>, Error> {
    let batch = job.training.batch_size as u64;
    let trace = |batch: u64| folder.join(format!("batch-{batch}"));
    let record = |batch: u64| -> Result<bool, Error> {
        let mut short = job.clone();
        short.training.batch_size = batch as usize;
        short.training.steps = Some(STEPS.end + 1);
        short.training.evaluate_every = None;
        short.training.checkpoint_every = None;
        let request = TraceRequest { folder: trace(batch), steps: STEPS };
        let outcome = run(&short, folder.join("trial"), request)?;
        let trial = folder.join("trial");
        fs::remove_dir_all(&trial).map_err(Error::io(&trial, "remove"))?;
        Ok(!outcome.interrupted)
    };
    let half = batch / 2;
    if !record(half)? || !record(batch)? {
        return Ok(None);
    }
    let small = read_recording(&trace(half), half, session)?;
    let large = read_recording(&trace(batch), batch, session)?;
    let to = 2 * batch;
    let prediction = predict_resized(&small.sized, &large.sized, to, DRAWS)?;
    let Some(predicted) = prediction.rows.first() else { return Ok(None) };
    session.console.say(format_args!(
        "      predicted step of {to} samples, before any was run: {}",
        render::nanos(predicted.step_ns as f64)
    ));
    if !record(to)? {
        return Ok(None);
    }
    let taken = measured(&[trace(to)], session)?;
    let Some(taken) = taken.first() else { return Ok(None) };
    let base_ns = large.means_ns.first().copied().unwrap_or_default();
    // The original batch size is measured once more. A different step time means that the speed of
    // the machine has changed.
    let base = trace(batch);
    fs::remove_dir_all(&base).map_err(Error::io(&base, "remove"))?;
    if !record(batch)? {
        return Ok(None);
    }
    let again = measured(&[base], session)?;
    let again_ns = again.first().map_or(base_ns, |again| again.mean_ns);
    let drift = Drift::new(base_ns, again_ns);
    let was_disturbed = drift.is_disturbed();
    if was_disturbed {
        session.console.warn(format_args!(
            "the machine was disturbed: a step of {batch} samples took {} before the change and {} \
             after it ({:+.0} %), so the error of the prediction says little",
            render::nanos(base_ns),
            render::nanos(again_ns),
            drift.pct
        ));
    }
    let error = |ns: f64| 100.0 * (ns - taken.mean_ns) / taken.mean_ns.max(1.0);
    let linear_ns = 2.0 * base_ns;
    Ok(Some(TriedChange {
        batch_size: batch,
        changed_batch_size: to,
        predicted_ns: predicted.step_ns,
        low_ns: predicted.low_ns,
        high_ns: predicted.high_ns,
        measured_ns: taken.mean_ns.round() as i64,
        error_pct: error(predicted.step_ns as f64),
        linear_error_pct: error(linear_ns),
        noise_pct: taken.noise_pct,
        base_ns: base_ns.round() as i64,
        base_again_ns: again_ns.round() as i64,
        was_disturbed,
    }))
}

impl TriedChange {
    /// Formats the result as lines of a label and a text, for people.
    pub fn lines(&self) -> [(&'static str, String); 4] {
        let ns = |ns: i64| render::nanos(ns as f64);
        let range = format!(
            "{} (90 %: {} to {})",
            ns(self.predicted_ns),
            ns(self.low_ns),
            ns(self.high_ns)
        );
        let error = format!(
            "{:+.1} % ({:+.1} % if twice the time is assumed; steps vary by {:.1} %)",
            self.error_pct, self.linear_error_pct, self.noise_pct
        );
        [
            ("predicted step of twice the batch", range),
            ("measured step of twice the batch", ns(self.measured_ns)),
            (
                "step of the original batch, before and after",
                format!("{} and {}", ns(self.base_ns), ns(self.base_again_ns)),
            ),
            ("error of the prediction", error),
        ]
    }
}
