//! Predicts a step from a calibration: its time, its interval, and the evidence for both.

mod evidence;
mod interval;
pub mod next;
pub mod what_if;

use schema::TableRow;
use serde::Serialize;

use evidence::EvidenceShares;
pub use interval::Draws;
use interval::StepInterval;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::cost::Costs;
use crate::evaluate;
use crate::program::Program;
use crate::recording::{RankSetting, Setting, Step};
use crate::simulate::{self, Simulation};

/// The predicted step of one rank: of a recording, of a recording with edits, or of a program that
/// was never run. Columns that only some of these have are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct PredictedStepRow {
    /// Name of the edits. This and the other columns about edits are left out without edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<String>,
    pub rank: u32,
    /// Predicted step without the edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<i64>,
    /// Predicted step time on the host.
    pub step_ns: i64,
    /// Median of the draws: a step with the usual disturbance.
    pub median_ns: i64,
    /// 5th percentile of the draws.
    pub low_ns: i64,
    /// 95th percentile of the draws.
    pub high_ns: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving_ns: Option<i64>,
    /// Relative to the step without the edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving_pct: Option<f64>,
    /// Time with any device work.
    pub busy_ns: i64,
    /// Share without device work, between the first and the last device work.
    pub idle_pct: f64,
    /// Share of actions and works priced by samples of the same name and sizes.
    pub measured_pct: f64,
    /// Share priced by samples of other sizes or of the class.
    pub modelled_pct: f64,
    pub unknown_pct: f64,
    /// The recorded step, or the mean of several; `None` where none was recorded.
    pub measured_ns: Option<i64>,
    pub error_pct: Option<f64>,
    /// Error of a baseline that is computed without a simulation.
    pub baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps; `None` for a single one.
    pub noise_pct: Option<f64>,
}

impl PredictedStepRow {
    /// Adds the mean of measured steps, their coefficient of variation, and the errors of the
    /// prediction and of a baseline.
    pub fn add_measured(&mut self, mean_ns: f64, noise_pct: f64, baseline_ns: f64) {
        let error_pct = |ns: f64| Some(100.0 * (ns - mean_ns) / mean_ns.max(1.0));
        self.measured_ns = Some(mean_ns.round() as i64);
        self.error_pct = error_pct(self.step_ns as f64);
        self.baseline_error_pct = error_pct(baseline_ns);
        self.noise_pct = Some(noise_pct);
    }
}

/// A program predicted from a calibration, with costs, simulation, and a row per rank.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub costs: Costs,
    pub simulation: Simulation,
    pub rows: Vec<PredictedStepRow>,
}

/// Predicts a recorded step from a calibration. Starts of ranks, and work left running by the
/// previous step, are as recorded.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_step(
    step: &Step,
    calibration: &Calibration,
    draws: Draws,
) -> Result<Prediction, Error> {
    let setting = step.recorded.setting(&step.program);
    let mut prediction = predict_program(&step.program, &setting, calibration, draws)?;
    for (row, recorded) in prediction.rows.iter_mut().zip(&step.recorded.ranks) {
        row.measured_ns = Some(recorded.step_ns);
        row.error_pct = Some(evaluate::error_pct(row.step_ns, recorded.step_ns));
    }
    Ok(prediction)
}

/// Predicts a program that was never run: its ranks start together, without work left running from
/// before.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_never_run(
    program: &Program,
    calibration: &Calibration,
    draws: Draws,
) -> Result<Prediction, Error> {
    let setting = Setting { ranks: vec![RankSetting::default(); program.ranks.len()] };
    predict_program(program, &setting, calibration, draws)
}

/// Predicts a program from a calibration. Starts of ranks, and work left running by the previous
/// step, come from `setting`.
///
/// For the interval, each draw picks one sample for every action and work, and one host factor for
/// every rank, because a slow host is slow everywhere.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_program(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    draws: Draws,
) -> Result<Prediction, Error> {
    let prices = Prices::new(calibration, Method::Full);
    predict_with_prices(program, setting, calibration, &prices, draws)
}

/// As [`predict_program`], for callers that predict several programs with the same prices.
fn predict_with_prices(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    prices: &Prices,
    draws: Draws,
) -> Result<Prediction, Error> {
    let costs = prices.price(program, setting);
    let simulation = simulate::run(program, &costs)?;
    let intervals = interval::compute_intervals(program, calibration, prices, &simulation, draws);
    let row = |(at, interval): (usize, &StepInterval)| {
        let shares = EvidenceShares::from_costs(&costs.ranks[at]);
        let (busy_ns, idle_pct) = evaluate::idle(evaluate::works(program, &simulation, at));
        PredictedStepRow {
            rank: program.ranks[at].rank,
            step_ns: simulation.step_ns(at),
            median_ns: interval.median_ns,
            low_ns: interval.low_ns,
            high_ns: interval.high_ns,
            busy_ns,
            idle_pct,
            measured_pct: shares.measured_pct,
            modelled_pct: shares.modelled_pct,
            unknown_pct: shares.unknown_pct,
            ..PredictedStepRow::default()
        }
    };
    let rows = intervals.iter().enumerate().map(row).collect();
    Ok(Prediction { costs, simulation, rows })
}
