//! Errors of published methods that predict the time of a step, beside those of rowmill's
//! simulation with simpler overheads. The published methods predict only the end of a step.

use std::collections::BTreeMap;

use predict::Error;
use predict::calibration::price::Prices;
use predict::calibration::{Calibration, Key, shared};
use predict::cost::Costs;
use predict::evaluate::{error_pct, leave_out};
use predict::overheads::trimmed;
use predict::program::Overhead;
use predict::recording::Step;
use predict::simulate;
use schema::TableRow;
use serde::Serialize;

use super::{algorithm1, published_code};

/// The families of operators between which time is priced together.
const FAMILIES: [&str; 2] = ["", shared::ENGINE];

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
    let price = |simpler: &Calibration| {
        let costs = Prices::new(simpler).price(program, &setting);
        Costs { constants: constants.clone(), ..costs }
    };
    let one_mean = price(&without_sizes(&calibration, |_, samples| samples));
    let trimmed = price(&trim_overheads(&calibration));
    let simulate = |costs: &Costs| -> Result<f64, Error> {
        Ok(error_pct(simulate::run(program, costs)?.step_ns(rank), measured_ns))
    };
    let algorithm = algorithm1::predict_step_times(program, &trimmed)[rank];
    let code = published_code::predict_step_times(program, &trimmed)[rank];
    Ok(PublishedRow {
        rank: program.ranks[rank].rank,
        measured_ns,
        one_mean_error_pct: simulate(&one_mean)?,
        trimmed_error_pct: simulate(&trimmed)?,
        published_code_error_pct: error_pct(code, measured_ns),
        published_error_pct: error_pct(algorithm, measured_ns),
    })
}

/// Removes the sizes of operators, and the operators around the time between operators. `keep`
/// selects the samples of an operator and kind of overhead.
fn without_sizes(
    calibration: &Calibration,
    keep: impl Fn(Overhead, Vec<i64>) -> Vec<i64>,
) -> Calibration {
    let mut simpler = Calibration { overheads: BTreeMap::new(), ..calibration.clone() };
    for (key, samples) in &calibration.overheads {
        let names = match key.class {
            Overhead::BetweenOps => &FAMILIES[..],
            _ => &[key.name.as_str()],
        };
        for name in names {
            let key = Key { class: key.class, name: (*name).to_owned(), detail: String::new() };
            simpler.overheads.entry(key).or_default().extend(samples);
        }
    }
    for (key, samples) in &mut simpler.overheads {
        *samples = keep(key.class, std::mem::take(samples));
    }
    simpler
}

/// Removes sizes as [`without_sizes`] does, and the outliers of all overheads except runtime calls.
///
/// # Source
/// arXiv:2201.07821, IV-B.
fn trim_overheads(calibration: &Calibration) -> Calibration {
    without_sizes(calibration, |class, samples| match class {
        Overhead::RuntimeCall => samples,
        _ => trimmed(samples),
    })
}
