//! `rowmill predict what-if`: a step with edits, and what was measured after they were made.

use std::fs;
use std::io::Write;
use std::path::Path;

use predict::edit::{Edit, Edits};
use predict::prediction::what_if::{Unedited, WhatIfRow};
use report::html::{self, PageOrigin};
use report::predicted::Predicted;
use schema::TableRow;
use serde::Serialize;

use super::calibrated::price_recorded_step;
use super::serve::Shown;
use crate::args::PredictWhatIf;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::open_job::job_title;
use setup::output;
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::step_times::{Measured, measured};
use setup::table_output::{self, TableTarget};

/// A predicted step beside a measured one.
#[derive(Serialize, TableRow)]
struct Row {
    #[serde(flatten)]
    predicted: WhatIfRow,
    /// Mean of the steps recorded after the edits were made.
    measured_ns: Option<i64>,
    error_pct: Option<f64>,
    /// Error of assuming that the edits change nothing, in percent.
    baseline_error_pct: Option<f64>,
    /// Coefficient of variation of the measured steps.
    noise_pct: Option<f64>,
}

/// Runs `rowmill predict what-if` and prints its result.
pub fn run(args: &PredictWhatIf, session: &Session) -> Result<(), Error> {
    let edits: Vec<Edits> = args.edits.iter().map(|path| edits(path)).collect::<Result<_, _>>()?;
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let asked = (args.calibration.as_ref(), args.recorded);
    let priced = price_recorded_step(asked, (&traces, &scopes), session)?;
    let (step, known) = (&priced.step, &priced.known);
    for edits in &edits {
        warn_of_network(edits, step.program.ranks.len(), session);
    }
    let setting = step.recorded.setting(&step.program);
    let base = Unedited::new(&step.program, &setting, known)?;
    let measured = measured(&args.measured, session)?;
    let draws = args.drawn.into();
    let mut rows = Vec::new();
    for (path, edits) in args.edits.iter().zip(&edits) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let found = base.with(&name, &edits.edit, draws);
        let found = found
            .map_err(|source| UsageError::Edits { path: path.clone(), source: Box::new(source) })?;
        for predicted in found.rows {
            rows.push(row(predicted, &measured)?);
        }
    }
    if let (Some(page), Some(edits)) = (&args.page, edits.last()) {
        let shown = Shown { title: &job_title(&args.paths), step, base };
        write_page(page, &shown.with(&edits.edit, draws)?)?;
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Warns of edits that add ranks: nothing was recorded of the network between them.
fn warn_of_network(edits: &Edits, recorded: usize, session: &Session) {
    for edit in &edits.edit {
        if let Edit::ScaleRanks { to } = edit
            && *to > recorded
        {
            session.console.warn(format_args!(
                "scale-ranks to {to}: collectives are priced by the bandwidth and latency that the \
                 {recorded} recorded ranks had, for nothing is known of the network between more; \
                 across hosts they may take much longer"
            ));
        }
    }
}

fn edits(path: &Path) -> Result<Edits, Error> {
    let text = fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let edits = toml::from_str(&text);
    Ok(edits.map_err(|source| UsageError::EditsFile {
        path: path.to_owned(),
        source: Box::new(source),
    })?)
}

/// Writes the read-only page of a prediction.
fn write_page(page: &Path, view: &Predicted) -> Result<(), Error> {
    let text = html::predicted_page(view, &PageOrigin::File)?;
    output::put(page, |file| file.write_all(text.as_bytes()).map_err(Error::io(page, "write")))
}

fn row(predicted: WhatIfRow, measured: &[Measured]) -> Result<Row, Error> {
    let rank = predicted.rank;
    let found = measured.iter().find(|one| one.rank == rank);
    if found.is_none() && !measured.is_empty() {
        return Err(UsageError::NotMeasured { rank }.into());
    }
    let error = |ns: i64| found.map(|one| 100.0 * (ns as f64 - one.mean_ns) / one.mean_ns.max(1.0));
    Ok(Row {
        measured_ns: found.map(|one| one.mean_ns.round() as i64),
        error_pct: error(predicted.step_ns),
        baseline_error_pct: error(predicted.base_ns),
        noise_pct: found.map(|one| one.noise_pct),
        predicted,
    })
}
