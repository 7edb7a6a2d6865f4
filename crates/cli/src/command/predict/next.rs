//! `rowmill predict next`: what to make faster next.

use predict::calibration::price::{Method, Prices};
use predict::prediction::next;
use predict::simulate;

use super::calibrated::{Priced, price_recorded_step};
use crate::args::PredictNext;
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::table_output::{self, TableTarget};

/// Runs `rowmill predict next` and prints its result.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let asked = (args.calibration.as_ref(), args.recorded);
    let Priced { step, known, .. } = price_recorded_step(asked, (&traces, &scopes), session)?;
    let setting = step.recorded.setting(&step.program);
    let costs = Prices::new(&known, Method::Full).price(&step.program, &setting);
    let simulation = simulate::run(&step.program, &costs)?;
    let mut rows = next::rank_speedups(&step.program, &simulation);
    if args.top > 0 {
        rows.truncate(args.top);
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}
