//! Predicts a step that was never recorded: a program from another source, priced by a calibration.

use schema::TableRow;
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

/// The predicted step of one rank of a program without a recording; compare
/// [`PredictionRow`](super::PredictionRow).
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NeverRunRow {
    pub rank: u32,
    /// Predicted step time on the host.
    pub step_ns: i64,
    /// Median of the draws: a step with the usual disturbance.
    pub median_ns: i64,
    /// 5th percentile of the draws.
    pub low_ns: i64,
    /// 95th percentile of the draws.
    pub high_ns: i64,
    pub busy_ns: i64,
    /// Share without device work, between the first and the last device work.
    pub idle_pct: f64,
    /// Share priced by samples of the same name and sizes.
    pub measured_pct: f64,
    /// Share priced by samples of other sizes or of the class.
    pub modelled_pct: f64,
    pub unknown_pct: f64,
}

/// The simulation of a program without a recording, with a row per rank.
#[derive(Clone, Debug)]
pub struct NeverRun {
    pub simulation: Simulation,
    pub rows: Vec<NeverRunRow>,
}

/// Predicts a program whose ranks start together, without work left running from before.
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
    let intervals = interval::compute_intervals(program, calibration, &prices, &simulation, draws);
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
