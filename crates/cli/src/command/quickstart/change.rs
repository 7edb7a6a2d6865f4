//! One change of a quickstart, predicted before it is made: twice the batch. Then it is made and
//! measured.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use predict::prediction::Draws;
use schema::JobConfig;
use serde::Serialize;
use train::run::{RunOutcome, TraceRequest};

use setup::Session;
use setup::error::Error;
use setup::render;
use setup::resized_step::{predict_between, read_recording};
use setup::step_times::{Drift, measured};

/// Steps that are recorded of each batch size, after those that warm caches up.
const STEPS: Range<u64> = 12..20;
const DRAWS: Draws = Draws { count: 200, seed: 0 };

/// A change, what was predicted of it and what was measured afterwards.
#[derive(Clone, Debug, Serialize)]
pub struct TriedChange {
    batch_size: u64,
    changed_batch_size: u64,
    predicted_ns: i64,
    low_ns: i64,
    high_ns: i64,
    measured_ns: i64,
    error_pct: f64,
    /// Error of assuming that twice the batch takes twice the time, in percent.
    linear_error_pct: f64,
    /// Coefficient of variation of the measured steps.
    noise_pct: f64,
    /// Mean step of the batch before the change was made.
    base_ns: i64,
    /// Mean step of the batch once more, right after the change.
    base_again_ns: i64,
    /// Whether both differ so much that something else disturbed the machine.
    was_disturbed: bool,
}

/// Records half the batch and the batch, predicts twice the batch, then runs it. `None` if it was
/// interrupted.
pub fn prove(
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
    let found = predict_between(&small, &large, to, DRAWS)?;
    let Some(predicted) = found.rows.first() else { return Ok(None) };
    session.console.say(format_args!(
        "      steps of {to} samples: {} predicted, before any was run",
        render::nanos(predicted.step_ns as f64)
    ));
    if !record(to)? {
        return Ok(None);
    }
    let taken = measured(&[trace(to)], session)?;
    let Some(taken) = taken.first() else { return Ok(None) };
    let base_ns = large.means_ns.first().copied().unwrap_or_default();
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
    /// For people, one line each.
    pub fn lines(&self) -> [(&'static str, String); 4] {
        let ns = |ns: i64| render::nanos(ns as f64);
        let range = format!(
            "{} (90 %: {} to {})",
            ns(self.predicted_ns),
            ns(self.low_ns),
            ns(self.high_ns)
        );
        let off = format!(
            "{:+.1} % ({:+.1} % for twice the time; steps vary by {:.1} %)",
            self.error_pct, self.linear_error_pct, self.noise_pct
        );
        [
            ("a step of twice the batch, predicted", range),
            ("the same, measured afterwards", ns(self.measured_ns)),
            (
                "a step of the batch, before and after it",
                format!("{} and {}", ns(self.base_ns), ns(self.base_again_ns)),
            ),
            ("error of the prediction", off),
        ]
    }
}
