//! The command `rowmill predict next`, which ranks operators and kernels by how much a step would
//! gain if they were faster.

use predict::calibration::price::Prices;
use predict::prediction::next;
use predict::simulate;

use super::calibrated::read_step;
use crate::args::PredictNext;
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::table_output::{self, TableTarget};

/// Runs `rowmill predict next` and prints its result.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let calibrated =
        read_step(args.calibration.as_deref(), args.selection, &traces, &scopes, session)?;
    let step = &calibrated.step;
    let prices = Prices::new(&calibrated.calibration);
    let setting = prices.setting_of_devices(step);
    let costs = prices.price(&step.program, &setting);
    let simulation = simulate::run(&step.program, &costs)?;
    calibrated.check_base(&simulation, session);
    let mut rows = next::rank_speedups(&step.program, &simulation);
    if args.top > 0 {
        rows.truncate(args.top);
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}
