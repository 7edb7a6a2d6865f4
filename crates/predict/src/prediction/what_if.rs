//! Predicts an edited step and compares it with the unedited step. The same calibration prices
//! both, and both are steps in equilibrium.

use super::{Draws, PredictedStepRow, Priced, rows_of};
use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::Prices;
use crate::edit::{self, Edit};
use crate::evaluate;
use crate::program::Program;
use crate::recording::Setting;
use crate::simulate::{self, Simulation};

/// An edited program with its simulation and one row per rank.
#[derive(Clone, Debug)]
pub struct WhatIf {
    pub program: Program,
    pub simulation: Simulation,
    pub rows: Vec<PredictedStepRow>,
}

/// The simulation of a recorded step without edits. The simulation is computed once and compared
/// with any number of edits.
#[derive(Debug)]
pub struct Unedited<'a> {
    program: &'a Program,
    setting: &'a Setting,
    calibration: &'a Calibration,
    prices: Prices,
    /// The step as it was recorded: each rank starts when it did, with what was running then.
    pub recorded: Simulation,
    /// This step in equilibrium, which is the base of edits.
    steady: Simulation,
}

impl<'a> Unedited<'a> {
    /// Simulates a step without edits, as the reference for later edits.
    ///
    /// # Errors
    /// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
    pub fn new(
        program: &'a Program,
        setting: &'a Setting,
        calibration: &'a Calibration,
    ) -> Result<Self, Error> {
        let prices = Prices::new(calibration);
        let recorded = simulate::run(program, &prices.price(program, setting))?;
        let steady = recorded.clone().into_steady();
        Ok(Self { program, setting, calibration, prices, recorded, steady })
    }

    /// Predicts the step with edits applied and compares each rank with the unedited step.
    ///
    /// # Errors
    /// The errors of [`edit::apply`], and [`Error::Cycle`] if the edits make the program wait for
    /// itself.
    pub fn with(&self, name: &str, edits: &[Edit], draws: Draws<'_>) -> Result<WhatIf, Error> {
        let program = edit::apply(self.program, edits)?;
        self.compare(name, program, self.calibration, draws)
    }

    /// Predicts an edited program by its own calibration and compares each rank with the unedited
    /// step.
    ///
    /// # Errors
    /// [`Error::Cycle`] if the program waits for itself.
    pub fn compare(
        &self,
        name: &str,
        program: Program,
        calibration: &Calibration,
        draws: Draws<'_>,
    ) -> Result<WhatIf, Error> {
        let priced_anew =
            (!std::ptr::eq(calibration, self.calibration)).then(|| Prices::new(calibration));
        let prices = priced_anew.as_ref().unwrap_or(&self.prices);
        let costs = prices.price(&program, self.setting);
        let simulation = simulate::run(&program, &costs)?.into_steady();
        let priced = Priced { costs, simulation, prices };
        let prediction = rows_of(&program, priced, calibration, draws);
        let mut rows = prediction.rows;
        for (at, row) in rows.iter_mut().enumerate() {
            // A rank that an edit added is compared with the recorded rank whose work it copies.
            let base_ns = self.steady.step_ns(program.ranks[at].copy_of.unwrap_or(at));
            row.edits = Some(name.to_owned());
            row.base_ns = Some(base_ns);
            row.saving_ns = Some(base_ns - row.step_ns);
            row.saving_pct = Some(-evaluate::error_pct(row.step_ns, base_ns));
        }
        Ok(WhatIf { program, simulation: prediction.simulation, rows })
    }
}
