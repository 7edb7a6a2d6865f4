//! A step that was never recorded: a program from elsewhere, by a calibration.

use serde::Serialize;

use super::draws::Draws;
use super::evidence::EvidenceShares;
use super::interval;
use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::evaluate;
use crate::program::Program;
use crate::recording::{RankSetting, Setting};
use crate::simulate::{self, Simulation};

/// A rank's predicted step; see [`PredictionRow`](super::PredictionRow).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeverRunRow {
    pub rank: u32,
    /// Predicted, on the host.
    pub step_ns: i64,
    /// Half of the draws are shorter: what a step takes that nothing disturbs more than usual.
    pub median_ns: i64,
    /// 5 % of the draws are shorter.
    pub low_ns: i64,
    /// 95 % of the draws are shorter.
    pub high_ns: i64,
    pub busy_ns: i64,
    /// None does, of the time from the first device work to the last.
    pub idle_pct: f64,
    /// Priced by samples of the same with the same sizes.
    pub measured_pct: f64,
    /// Priced by other sizes, or by the class.
    pub modelled_pct: f64,
    /// Nothing was known of.
    pub unknown_pct: f64,
}

/// A step that was never recorded.
#[derive(Clone, Debug)]
pub struct NeverRun {
    pub simulation: Simulation,
    pub rows: Vec<NeverRunRow>,
}

/// Predicts a program whose ranks start together, with nothing left running before.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_program(
    program: &Program,
    calibration: &Calibration,
    draws: Draws,
) -> Result<NeverRun, Error> {
    let setting = Setting { ranks: vec![RankSetting::default(); program.ranks.len()] };
    let prices = Prices::new(calibration, Method::Full);
    let costs = prices.price(program, &setting);
    let simulation = simulate::run(program, &costs)?;
    let intervals =
        interval::compute_intervals(program, (calibration, &prices), (&simulation, draws));
    let row = |at: usize| {
        let (busy_ns, idle_pct) = evaluate::idle(evaluate::works(program, &simulation, at));
        let EvidenceShares { measured_pct, modelled_pct, unknown_pct } =
            EvidenceShares::from_costs(&costs.ranks[at]);
        NeverRunRow {
            rank: program.ranks[at].rank,
            step_ns: simulation.step_ns(at),
            median_ns: intervals[at].median_ns,
            low_ns: intervals[at].low_ns,
            high_ns: intervals[at].high_ns,
            busy_ns,
            idle_pct,
            measured_pct,
            modelled_pct,
            unknown_pct,
        }
    };
    let rows = (0..program.ranks.len()).map(row).collect();
    Ok(NeverRun { simulation, rows })
}
