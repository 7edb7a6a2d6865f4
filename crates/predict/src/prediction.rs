//! Predicts a step from a calibration: its time, its interval, and the evidence for both.

mod draws;
mod evidence;
mod interval;
pub mod never_run;
pub mod next;
pub mod what_if;

use schema::TableRow;
use serde::Serialize;

pub use draws::Draws;
use evidence::EvidenceShares;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::cost::Costs;
use crate::evaluate;
use crate::recording::Step;
use crate::simulate::{self, Simulation};

/// The predicted step of one rank beside the recorded one.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct PredictionRow {
    pub rank: u32,
    /// Predicted step time on the host.
    pub step_ns: i64,
    /// 5th percentile of the draws.
    pub low_ns: i64,
    /// 95th percentile of the draws.
    pub high_ns: i64,
    pub busy_ns: i64,
    /// Share without device work, between the first and the last device work.
    pub idle_pct: f64,
    /// Share of actions and works priced by samples of the same name and sizes.
    pub measured_pct: f64,
    /// Share priced by samples of other sizes or of the class.
    pub modelled_pct: f64,
    pub unknown_pct: f64,
    pub measured_ns: i64,
    pub error_pct: f64,
    /// Error of the baseline, the mean of the calibration steps; `None` if those were not given.
    pub baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the recorded steps; `None` for one step.
    pub noise_pct: Option<f64>,
}

/// A recorded step predicted from a calibration, with costs and simulation.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub costs: Costs,
    pub simulation: Simulation,
    pub rows: Vec<PredictionRow>,
}

/// Predicts a recorded step from a calibration. Starts of ranks, and work left running by the
/// previous step, are as recorded.
///
/// For the interval, each draw picks one sample for every action and work, and one host factor for
/// every rank, because a slow host is slow everywhere.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_step(
    step: &Step,
    calibration: &Calibration,
    draws: Draws,
) -> Result<Prediction, Error> {
    let prices = Prices::new(calibration, Method::Full);
    let costs = prices.price(&step.program, &step.recorded.setting(&step.program));
    let simulation = simulate::run(&step.program, &costs)?;
    let intervals =
        interval::compute_intervals(&step.program, calibration, &prices, &simulation, draws);
    let compared = evaluate::ranks(step, &simulation, &[]);
    let row = |(at, found): (usize, evaluate::RankRow)| {
        let shares = EvidenceShares::from_costs(&costs.ranks[at]);
        PredictionRow {
            rank: found.rank,
            step_ns: found.step_ns,
            low_ns: intervals[at].low_ns,
            high_ns: intervals[at].high_ns,
            busy_ns: found.busy_ns,
            idle_pct: found.idle_pct,
            measured_pct: shares.measured_pct,
            modelled_pct: shares.modelled_pct,
            unknown_pct: shares.unknown_pct,
            measured_ns: found.measured_ns,
            error_pct: found.error_pct,
            baseline_error_pct: None,
            noise_pct: None,
        }
    };
    let rows = compared.into_iter().enumerate().map(row).collect();
    Ok(Prediction { costs, simulation, rows })
}
