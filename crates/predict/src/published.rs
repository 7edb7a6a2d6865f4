//! Published methods that predict the time of a step, for comparison with rowmill's simulation. The
//! published methods predict only the end of a step. `rowmill-bench published` prints the errors of
//! these methods, and predictions do not use the methods.

pub mod algorithm1;
pub mod published_code;

use schema::TableRow;
use serde::Serialize;

use crate::Error;
use crate::calibration::price::{Method, Prices};
use crate::evaluate::{error_pct, leave_out};
use crate::recording::Step;
use crate::simulate;

/// Errors of published methods on a rank whose samples were not used for calibration. The errors
/// are compared with the error of rowmill's prediction in [`leave_out::LeftOutRankRow`].
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct PublishedRow {
    pub rank: u32,
    pub measured_ns: i64,
    /// Error of rowmill's simulation with a single mean for all time between operators, as
    /// published.
    pub one_mean_error_pct: f64,
    /// Error of rowmill's simulation with samples trimmed at 1.5 interquartile ranges.
    pub trimmed_error_pct: f64,
    /// Error of the published code, which [`published_code`] reimplements.
    pub published_code_error_pct: f64,
    /// Error of the published algorithm, which [`algorithm1`] implements.
    pub published_error_pct: f64,
}

/// Predicts each rank of a step with every published method, from the samples of the other ranks.
///
/// # Errors
/// [`Error::TooFewRanks`] for a job of one rank, and [`Error::Cycle`] from the simulation.
pub fn evaluate_left_out_ranks(step: &Step) -> Result<Vec<PublishedRow>, Error> {
    leave_out::evaluate_each_rank(step, row)
}

fn row(step: &Step, rank: usize) -> Result<PublishedRow, Error> {
    let (calibration, constants) = leave_out::calibrate_without_rank(step, rank)?;
    let program = &step.program;
    let setting = step.recorded.setting(program);
    let measured_ns = step.recorded.ranks[rank].step_ns;
    let price = |method| Prices::new(&calibration, method).price(program, &setting);
    let simulate = |method| -> Result<f64, Error> {
        let mut costs = price(method);
        costs.constants = constants.clone();
        Ok(error_pct(simulate::run(program, &costs)?.step_ns(rank), measured_ns))
    };
    let algorithm =
        algorithm1::predict_step_times(program, &setting, &calibration, &constants)[rank];
    let code =
        published_code::predict_step_times(program, &price(Method::Trimmed), &constants)[rank];
    Ok(PublishedRow {
        rank: program.ranks[rank].rank,
        measured_ns,
        one_mean_error_pct: simulate(Method::OneMean)?,
        trimmed_error_pct: simulate(Method::Trimmed)?,
        published_code_error_pct: error_pct(code, measured_ns),
        published_error_pct: error_pct(algorithm, measured_ns),
    })
}
