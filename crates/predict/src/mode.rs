//! How a step is simulated: in full, or by published methods for comparison. The published methods
//! predict only the end of a step.

pub mod algorithm1;
mod published_code;

use schema::CellType;
use serde::Serialize;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::cost::Constants;
use crate::program::Program;
use crate::recording::Setting;
use crate::simulate;

/// Method of simulating a step: our full simulation, or published methods for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Simulates threads, streams and waits, with costs by operator and sizes.
    #[default]
    Full,
    /// The code published with arXiv:2201.07821 and its successor: see [`published_code`].
    Published,
    /// Algorithm 1 of arXiv:2201.07821: see [`algorithm1`].
    #[serde(rename = "seed")]
    Algorithm1,
}

/// Predicts the step time of each rank. [`Mode::Full`] starts ranks at the times of `setting`; the
/// published methods start them together.
///
/// # Errors
/// [`Error::Cycle`].
pub fn predict_step_times(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    constants: &Constants,
    mode: Mode,
) -> Result<Vec<i64>, Error> {
    Ok(match mode {
        Mode::Algorithm1 => {
            algorithm1::predict_step_times(program, setting, calibration, constants)
        }
        Mode::Published => {
            let costs = Prices::new(calibration, Method::Trimmed).price(program, setting);
            published_code::predict_step_times(program, &costs, constants)
        }
        Mode::Full => {
            let mut costs = Prices::new(calibration, Method::Full).price(program, setting);
            costs.constants = constants.clone();
            let simulation = simulate::run(program, &costs)?;
            (0..program.ranks.len()).map(|rank| simulation.step_ns(rank)).collect()
        }
    })
}
