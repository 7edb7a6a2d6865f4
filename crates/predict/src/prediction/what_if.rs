//! Predicts an edited step beside the recorded one, both priced by one calibration.

use schema::TableRow;
use serde::Serialize;

use super::draws::Draws;
use super::evidence::EvidenceShares;
use super::interval;
use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::{Method, Prices};
use crate::edit::{self, Edit};
use crate::evaluate;
use crate::program::Program;
use crate::recording::Setting;
use crate::simulate::{self, Simulation};

/// The step of one rank with edits, beside the unedited step.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct WhatIfRow {
    pub edits: String,
    pub rank: u32,
    pub base_ns: i64,
    pub step_ns: i64,
    /// 5th percentile of the draws.
    pub low_ns: i64,
    /// 95th percentile of the draws.
    pub high_ns: i64,
    pub saving_ns: i64,
    /// Relative to the unedited step.
    pub saving_pct: f64,
    pub busy_ns: i64,
    /// Share without device work, between the first and the last device work.
    pub idle_pct: f64,
    pub measured_pct: f64,
    pub modelled_pct: f64,
    pub unknown_pct: f64,
}

/// A program with edits, its simulation, and a row per rank.
#[derive(Clone, Debug)]
pub struct WhatIf {
    pub program: Program,
    pub simulation: Simulation,
    pub rows: Vec<WhatIfRow>,
}

/// The simulation of a recorded step without edits, which any number of edits are compared with.
#[derive(Debug)]
pub struct Unedited<'a> {
    program: &'a Program,
    setting: &'a Setting,
    calibration: &'a Calibration,
    prices: Prices,
    simulation: Simulation,
}

/// Predicts a recorded step with edits.
///
/// # Errors
/// Those of [`Unedited::new`] and [`Unedited::with`].
pub fn predict_edited(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
    name: &str,
    edits: &[Edit],
    draws: Draws,
) -> Result<WhatIf, Error> {
    Unedited::new(program, setting, calibration)?.with(name, edits, draws)
}

/// Predicts an edited program beside the recorded one.
///
/// # Errors
/// [`Error::Cycle`].
pub fn compare_programs(
    program: &Program,
    setting: &Setting,
    edited: Program,
    calibration: &Calibration,
    name: &str,
    draws: Draws,
) -> Result<WhatIf, Error> {
    Unedited::new(program, setting, calibration)?.beside(edited, name, draws)
}

impl<'a> Unedited<'a> {
    /// Simulates a step without edits.
    ///
    /// # Errors
    /// [`Error::Cycle`].
    pub fn new(
        program: &'a Program,
        setting: &'a Setting,
        calibration: &'a Calibration,
    ) -> Result<Self, Error> {
        let prices = Prices::new(calibration, Method::Full);
        let simulation = simulate::run(program, &prices.price(program, setting))?;
        Ok(Self { program, setting, calibration, prices, simulation })
    }

    /// Predicts the step with edits.
    ///
    /// # Errors
    /// Those of [`edit::apply`]; [`Error::Cycle`] where edits make the program wait for itself.
    pub fn with(&self, name: &str, edits: &[Edit], draws: Draws) -> Result<WhatIf, Error> {
        self.beside(edit::apply(self.program, edits)?, name, draws)
    }

    /// Predicts an edited program.
    fn beside(&self, edited: Program, name: &str, draws: Draws) -> Result<WhatIf, Error> {
        let costs = self.prices.price(&edited, self.setting);
        let simulation = simulate::run(&edited, &costs)?;
        let intervals = interval::compute_intervals(
            &edited,
            self.calibration,
            &self.prices,
            &simulation,
            draws,
        );
        let row = |at: usize| {
            let recorded = edited.ranks[at].copy_of.unwrap_or(at);
            let (base_ns, step_ns) = (self.simulation.step_ns(recorded), simulation.step_ns(at));
            let EvidenceShares { measured_pct, modelled_pct, unknown_pct } =
                EvidenceShares::from_costs(&costs.ranks[at]);
            let (busy_ns, idle_pct) = evaluate::idle(evaluate::works(&edited, &simulation, at));
            WhatIfRow {
                edits: name.to_owned(),
                rank: edited.ranks[at].rank,
                base_ns,
                step_ns,
                low_ns: intervals[at].low_ns,
                high_ns: intervals[at].high_ns,
                saving_ns: base_ns - step_ns,
                saving_pct: -evaluate::error_pct(step_ns, base_ns),
                busy_ns,
                idle_pct,
                measured_pct,
                modelled_pct,
                unknown_pct,
            }
        };
        let rows = (0..edited.ranks.len()).map(row).collect();
        Ok(WhatIf { program: edited, simulation, rows })
    }
}
