//! Predicts a step from a calibration: its time, its interval, and the evidence for both.

mod interval;
pub mod never_run;
pub mod next;
pub mod what_if;

use serde::Serialize;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::cost::{Costs, RankCosts, Source};
use crate::evaluate;
use crate::recording::Step;
use crate::simulate::{self, Simulation};

/// A rank's predicted step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionRow {
    pub rank: u32,
    /// Predicted, on the host.
    pub step_ns: i64,
    /// 5 % of the draws are shorter.
    pub low_ns: i64,
    /// 95 % of the draws are shorter.
    pub high_ns: i64,
    pub busy_ns: i64,
    /// None does, of the time from the first device work to the last.
    pub idle_pct: f64,
    /// Stretches of the host and works priced by samples of the same with the same sizes.
    pub measured_pct: f64,
    /// Those priced by other sizes, or by the class.
    pub modelled_pct: f64,
    pub unknown_pct: f64,
    pub measured_ns: i64,
    pub error_pct: f64,
    /// Of "as long as the calibrated steps in the mean"; `None` where those were not given.
    pub baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the recorded steps; `None` of one.
    pub noise_pct: Option<f64>,
}

/// How an interval is found.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    pub count: u32,
    /// What they depend on.
    pub seed: u64,
}

/// A step by a calibration.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub costs: Costs,
    pub simulation: Simulation,
    pub rows: Vec<PredictionRow>,
}

/// Predicts a step. Starts of ranks, and what an earlier step left running, are as recorded.
///
/// Each draw takes one of the samples for every stretch and work, and one of the factors for every
/// rank's host: a slow host is slow everywhere.
///
/// # Errors
/// [`Error::Cycle`].
pub fn of(step: &Step, calibration: &Calibration, draws: Draws) -> Result<Prediction, Error> {
    let prices = Prices::new(calibration, Method::Full);
    let costs = prices.price(&step.program, &step.recorded.setting(&step.program));
    let simulation = simulate::run(&step.program, &costs)?;
    let intervals = interval::of(&step.program, (calibration, &prices), (&simulation, draws));
    let compared = evaluate::ranks(step, &simulation, &[]);
    let row = |(at, found): (usize, evaluate::RankRow)| {
        let shares = shares(&costs.ranks[at]);
        PredictionRow {
            rank: found.rank,
            step_ns: found.step_ns,
            low_ns: intervals[at].low_ns,
            high_ns: intervals[at].high_ns,
            busy_ns: found.busy_ns,
            idle_pct: found.idle_pct,
            measured_pct: shares.0,
            modelled_pct: shares.1,
            unknown_pct: shares.2,
            measured_ns: found.measured_ns,
            error_pct: found.error_pct,
            baseline_error_pct: None,
            noise_pct: None,
        }
    };
    let rows = compared.into_iter().enumerate().map(row).collect();
    Ok(Prediction { costs, simulation, rows })
}

/// Of everything with a cost: measured, modelled and unknown, in percent.
fn shares(costs: &RankCosts) -> (f64, f64, f64) {
    let all = costs.actions.iter().flatten().chain(&costs.works);
    let mut counts = [0u32; 3];
    for cost in all {
        match cost.source {
            Some(Source::Measured) => counts[0] += 1,
            Some(Source::Modelled) => counts[1] += 1,
            Some(Source::Unknown) => counts[2] += 1,
            None => {}
        }
    }
    let total = counts.iter().sum::<u32>().max(1);
    let share = |at: usize| 100.0 * f64::from(counts[at]) / f64::from(total);
    (share(0), share(1), share(2))
}
