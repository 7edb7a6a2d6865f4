//! `rowmill predict resize`: a step at a size between or beyond two recorded ones.

use predict::prediction::what_if::WhatIfRow;
use schema::TableRow;
use serde::Serialize;

use super::calibrated::check_machine;
use crate::args::PredictResize;
use setup::Session;
use setup::error::Error;
use setup::resized_step::{predict_between, read_recording};
use setup::step_times::{Measured, measured};
use setup::table_output::{self, TableTarget};

/// The predicted step of one rank at one size, beside the measured step where it was recorded.
#[derive(Serialize, TableRow)]
struct Row {
    size: u64,
    rank: u32,
    step_ns: i64,
    low_ns: i64,
    high_ns: i64,
    busy_ns: i64,
    idle_pct: f64,
    measured_pct: f64,
    modelled_pct: f64,
    unknown_pct: f64,
    /// Mean of the steps recorded at this size.
    measured_ns: Option<i64>,
    error_pct: Option<f64>,
    /// Error of the baseline, a linear interpolation between the two recordings' mean steps, in
    /// percent.
    baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps.
    noise_pct: Option<f64>,
}

/// Runs `rowmill predict resize` and prints its result.
pub fn run(args: &PredictResize, session: &Session) -> Result<(), Error> {
    let (from, until) = args.sizes;
    let small = read_recording(&args.small, from, session)?;
    let large = read_recording(&args.large, until, session)?;
    let (of_small, of_large) = (&small.calibration.machine, &large.calibration.machine);
    check_machine((&args.large, of_large), of_small, (false, session))?;
    let after = measured(&args.measured, session)?;
    let mut rows = Vec::new();
    for (at, to) in args.to.iter().enumerate() {
        let found = predict_between(&small, &large, *to, args.drawn.into())?;
        let is_measured = at + 1 == args.to.len();
        let share = (*to as f64 - from as f64) / (until as f64 - from as f64);
        for (place, row) in found.rows.into_iter().enumerate() {
            let line =
                small.means_ns[place] + (large.means_ns[place] - small.means_ns[place]) * share;
            let measured = after.iter().find(|one| one.rank == row.rank && is_measured);
            rows.push(predicted_row(*to, row, (line, measured)));
        }
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

fn predicted_row(size: u64, row: WhatIfRow, (line_ns, measured): (f64, Option<&Measured>)) -> Row {
    let error = |ns: f64| measured.map(|one| 100.0 * (ns - one.mean_ns) / one.mean_ns.max(1.0));
    Row {
        size,
        rank: row.rank,
        step_ns: row.step_ns,
        low_ns: row.low_ns,
        high_ns: row.high_ns,
        busy_ns: row.busy_ns,
        idle_pct: row.idle_pct,
        measured_pct: row.measured_pct,
        modelled_pct: row.modelled_pct,
        unknown_pct: row.unknown_pct,
        measured_ns: measured.map(|one| one.mean_ns.round() as i64),
        error_pct: error(row.step_ns as f64),
        baseline_error_pct: error(line_ns),
        noise_pct: measured.map(|one| one.noise_pct),
    }
}
