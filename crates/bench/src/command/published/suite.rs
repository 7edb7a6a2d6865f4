//! `rowmill-bench published --kernels SUITE` prints the published table of kernel errors for the
//! GPU of a recorded suite. `kernel_table` computes the errors.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::kernel_table::{self, ErrorPair, SuiteRow};
use crate::args::BenchPublished;
use setup::Session;
use setup::error::Error;
use setup::kernel_files::read_model;
use setup::render;
use setup::suite::{SUITE, read_kernels};

/// Prediction errors for the kernels of the published suite.
#[derive(Serialize)]
struct SuiteReport {
    device: String,
    /// Number of kernels that the suite measured.
    measured: usize,
    table: Vec<SuiteRow>,
}

/// Finds the first path that is the folder of a suite.
pub fn find(paths: &[PathBuf]) -> Option<&Path> {
    paths.iter().map(PathBuf::as_path).find(|path| path.join(SUITE).is_file())
}

/// Prints the table of errors for the suite in `folder`.
pub fn run(folder: &Path, args: &BenchPublished, session: &Session) -> Result<(), Error> {
    if args.paths.len() > 1 {
        let (expected, got) = ("a recorded suite alone".to_owned(), "other paths too".to_owned());
        return Err(predict::Error::Workload { expected, got }.into());
    }
    let (device, measured) = read_kernels(folder)?;
    let models = args.models.as_deref();
    let table = kernel_table::rows(&measured, device, |kind| read_model(models, kind))?;
    if table.is_empty() {
        session.console.warn(format_args!(
            "{} kernels, too few of each kind to judge by",
            render::count(measured.len() as u64)
        ));
    }
    let report = SuiteReport { device: device.name.to_string(), measured: measured.len(), table };
    session.console.report(&report, format_report)
}

fn format_report(report: &SuiteReport) -> String {
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
