//! `rowmill predict next`: what to make faster next.

use predict::calibration::price::{Method, Prices};
use predict::prediction::next;
use predict::simulate;

use super::{Priced, priced, recordings, scopes};
use crate::args::PredictNext;
use crate::error::Error;
use crate::resolve::Session;
use crate::sheet::{self, SheetTarget};

/// Runs the command.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = recordings(&args.paths, session)?;
    let scopes = scopes(&traces);
    let asked = (args.calibration.as_ref(), args.recorded);
    let Priced { step, known, .. } = priced(asked, (&traces, &scopes), session)?;
    let setting = step.recorded.setting(&step.program);
    let costs = Prices::new(&known, Method::Full).price(&step.program, &setting);
    let simulation = simulate::run(&step.program, &costs)?;
    let mut rows = next::rank_speedups(&step.program, &simulation);
    if args.top > 0 {
        rows.truncate(args.top);
    }
    sheet::put(session.console, &rows, SheetTarget::default())
}
