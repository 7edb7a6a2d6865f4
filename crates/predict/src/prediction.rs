//! Predicts the time of a step from a calibration, with an interval and the evidence for it.

mod evidence;
mod interval;
pub mod never_run;
pub mod next;
pub mod what_if;

use schema::TableRow;
use serde::Serialize;

use evidence::EvidenceShares;
pub use interval::Draws;
use interval::StepInterval;
pub use never_run::Binds;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::Prices;
use crate::cost::Costs;
use crate::edit::resize::{Resized, SizedStep, resize};
use crate::evaluate;
use crate::program::Program;
use crate::recording::{RankSetting, Setting, Step};
use crate::simulate::{self, Simulation};

/// The predicted step of one rank. The step may be recorded, recorded and edited, or never run.
/// Columns that exist only for some of these kinds are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct PredictedStepRow {
    /// Name of the edits. Without edits, this and all other columns about edits are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<String>,
    pub rank: u32,
    /// Time of the recorded step, which has none of the edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_ns: Option<i64>,
    /// Predicted step time without the edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<i64>,
    /// Predicted step time, measured on the host.
    pub step_ns: i64,
    /// Predicted time of every step of a job that repeats this one, whose queues carry over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady_ns: Option<i64>,
    /// Time of the step if the device's work took no time, for steps that were never run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_ns: Option<i64>,
    /// Time of the device's work if the host took no time, for steps that were never run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<i64>,
    /// Sum of the times of all kernels, for steps that were never run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_only_ns: Option<i64>,
    /// Which of host and device decides the time of a step that was never run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binds: Option<Binds>,
    /// Median of the random draws, which is the time of a step with typical disturbances.
    pub median_ns: i64,
    /// 5th percentile of the random draws.
    pub low_ns: i64,
    /// 95th percentile of the random draws.
    pub high_ns: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving_ns: Option<i64>,
    /// Saving relative to the predicted step without the edits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving_pct: Option<f64>,
    /// Time in which any device work runs.
    pub busy_ns: i64,
    /// Idle share of the time between the first and the last device work.
    pub idle_pct: f64,
    /// Share of actions and works that are priced by samples of the same name and sizes.
    pub measured_pct: f64,
    /// Share of actions and works that are priced by samples of other sizes or of the class.
    pub modeled_pct: f64,
    pub unknown_pct: f64,
    /// Time of the recorded step, or mean time of several. The time is `None` if no step was
    /// recorded.
    pub measured_ns: Option<i64>,
    pub error_pct: Option<f64>,
    /// Error of a simple baseline that is computed without a simulation.
    pub baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps, or `None` for a single step.
    pub noise_pct: Option<f64>,
}

impl PredictedStepRow {
    /// Stores the mean of measured steps and their coefficient of variation, and computes the
    /// errors of the prediction and of a baseline.
    pub fn add_measured(&mut self, mean_ns: f64, noise_pct: f64, baseline_ns: f64) {
        let error_pct = |ns: f64| Some(100.0 * (ns - mean_ns) / mean_ns.max(1.0));
        self.measured_ns = Some(mean_ns.round() as i64);
        self.error_pct = error_pct(self.step_ns as f64);
        self.baseline_error_pct = error_pct(baseline_ns);
        self.noise_pct = Some(noise_pct);
    }
}

/// A predicted program with its costs, its simulation, and one row per rank.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub costs: Costs,
    pub simulation: Simulation,
    pub rows: Vec<PredictedStepRow>,
}

/// Predicts a recorded step from a calibration. Each rank starts as recorded, and work that the
/// previous step left running ends as recorded.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn predict_step(
    step: &Step,
    calibration: &Calibration,
    draws: Draws<'_>,
) -> Result<Prediction, Error> {
    let setting = step.recorded.setting(&step.program);
    let mut prediction = predict_program(&step.program, &setting, calibration, draws)?;
    let steady = prediction.simulation.clone().into_steady();
    for (at, recorded) in step.recorded.ranks.iter().enumerate() {
        let row = &mut prediction.rows[at];
        row.steady_ns = Some(steady.step_ns(at));
        row.measured_ns = Some(recorded.step_ns);
        row.error_pct = Some(evaluate::error_pct(row.step_ns, recorded.step_ns));
    }
    Ok(prediction)
}

/// Predicts a program that was never run, as one of many equal steps. The ranks of the program
/// start together.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn predict_never_run(
    program: &Program,
    calibration: &Calibration,
    draws: Draws<'_>,
) -> Result<Prediction, Error> {
    let setting = Setting { ranks: vec![RankSetting::default(); program.ranks.len()] };
    let prices = Prices::new(calibration);
    let costs = prices.price(program, &setting);
    let simulation = simulate::run(program, &costs)?.into_steady();
    let all = never_run::times_of_costs(program, &costs, &simulation)?;
    let priced = Priced { costs, simulation, prices: &prices };
    let mut prediction = rows_of(program, priced, calibration, draws);
    for (row, times) in prediction.rows.iter_mut().zip(all) {
        row.host_ns = Some(times.host_ns);
        row.device_ns = Some(times.device_ns);
        row.kernel_only_ns = Some(times.kernel_only_ns);
        row.binds = Some(times.binds);
    }
    Ok(prediction)
}

/// Predicts a program from a calibration. `setting` gives the start of each rank and the work that
/// the previous step left running.
///
/// For the interval, each draw picks one sample for every action and work. Each draw also picks one
/// host factor for each rank, because a slow host is slow throughout the step.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn predict_program(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    draws: Draws<'_>,
) -> Result<Prediction, Error> {
    let prices = Prices::new(calibration);
    let costs = prices.price(program, setting);
    let simulation = simulate::run(program, &costs)?;
    Ok(rows_of(program, Priced { costs, simulation, prices: &prices }, calibration, draws))
}

/// Predicts a step at the size `to` from steps that were recorded at two sizes.
///
/// # Errors
/// Those of [`resize`], and [`Error::Cycle`] if the actions wait for each other in a cycle.
pub fn predict_resized(
    small: &SizedStep,
    large: &SizedStep,
    to: u64,
    draws: Draws<'_>,
) -> Result<Prediction, Error> {
    let Resized { program, costs, calibration } = resize(small, large, to)?;
    let simulation = simulate::run(&program, &costs)?;
    let prices = Prices::new(&calibration);
    Ok(rows_of(&program, Priced { costs, simulation, prices: &prices }, &calibration, draws))
}

/// A simulated program with the costs and the prices from which it was simulated.
struct Priced<'a> {
    costs: Costs,
    simulation: Simulation,
    prices: &'a Prices,
}

/// Adds an interval and the evidence to a simulation.
fn rows_of(
    program: &Program,
    priced: Priced<'_>,
    calibration: &Calibration,
    draws: Draws<'_>,
) -> Prediction {
    let Priced { costs, simulation, prices } = priced;
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
            modeled_pct: shares.modeled_pct,
            unknown_pct: shares.unknown_pct,
            ..PredictedStepRow::default()
        }
    };
    let rows = intervals.iter().enumerate().map(row).collect();
    Prediction { costs, simulation, rows }
}
