//! `rowmill predict evaluate --kernels SUITE`: the published table of kernel errors for the GPU of
//! a recorded suite. The figures are `kernel_model::suite`'s.

use std::path::{Path, PathBuf};

use kernel_model::suite::{self, ErrorPair, SuiteRow};
use serde::Serialize;

use super::model;
use crate::args::PredictEvaluate;
use crate::command::predict::learn::suite as recorded;
use setup::Session;
use setup::error::Error;
use setup::render;

/// Prediction errors of one kernel of the published suite.
#[derive(Serialize)]
struct Report {
    device: String,
    /// Kernels that were measured.
    measured: usize,
    table: Vec<SuiteRow>,
}

/// The suite among the paths of a command.
pub fn named(args: &PredictEvaluate) -> Option<&Path> {
    args.paths.iter().map(PathBuf::as_path).find(|path| path.join(recorded::SUITE).is_file())
}

/// Prints the table of the suite in `folder`.
pub fn run(folder: &Path, args: &PredictEvaluate, session: &Session) -> Result<(), Error> {
    if args.paths.len() > 1 || args.kernels.leave_out || args.kernels.published.is_some() {
        let expected = "a recorded suite alone, without --leave-out and --published".to_owned();
        let got = "other paths or these options".to_owned();
        return Err(predict::Error::Workload { expected, got }.into());
    }
    let (device, measured) = recorded::kernels(folder)?;
    let models = args.kernels.models.as_deref();
    let table = suite::rows(&measured, device, |kind| model(models, kind))?;
    if table.is_empty() {
        session.console.warn(format_args!(
            "{} kernels, too few of each kind to judge by",
            render::count(measured.len() as u64)
        ));
    }
    let report = Report { device: device.name.to_string(), measured: measured.len(), table };
    session.console.report(&report, for_people)
}

fn for_people(report: &Report) -> String {
    let both = |pair: ErrorPair| format!("{:.2}/{:.2}", pair.gmae_pct, pair.mape_pct);
    let known = |pair: Option<ErrorPair>| pair.map_or(String::new(), both);
    let row = |row: &SuiteRow| {
        let verdict = match row.is_met {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        };
        vec![
            row.kernel.to_owned(),
            row.shapes.to_string(),
            known(row.paper),
            known(row.published),
            both(row.no_rows),
            known(row.twenty),
            known(row.all),
            format!("{:.0}", row.covered_pct),
            verdict.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = report.table.iter().map(row).collect();
    let header = [
        "kernel",
        "shapes",
        "paper %",
        "its formula %",
        "no rows %",
        "20 rows %",
        "4/5 of rows %",
        "covered %",
        "bar",
    ];
    format!(
        "{}: geometric mean / mean of absolute errors, each fifth of the shapes by the others\n{}",
        report.device,
        render::grid(&header, &rows)
    )
}
