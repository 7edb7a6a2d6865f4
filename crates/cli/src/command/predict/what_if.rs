//! The command `rowmill predict what-if`, which predicts a step after edits, and compares it with
//! steps that were measured after the edits were really made.

use std::fs;
use std::io::Write;
use std::path::Path;

use predict::calibration::price::Prices;
use predict::edit::{Edit, Edits};
use predict::prediction::PredictedStepRow;
use predict::prediction::what_if::Unedited;
use report::html::{self, PageOrigin};
use report::predicted::Predicted;

use super::calibrated::read_step;
use super::serve::EditedStepPage;
use crate::args::PredictWhatIf;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::open_job::job_title;
use setup::output;
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::step_times::measured;
use setup::table_output::{self, TableTarget};

/// Runs `rowmill predict what-if` and prints its result.
pub fn run(args: &PredictWhatIf, session: &Session) -> Result<(), Error> {
    let edits: Vec<Edits> =
        args.edits.iter().map(|path| read_edits(path)).collect::<Result<_, _>>()?;
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let calibrated =
        read_step(args.calibration.as_deref(), args.selection, &traces, &scopes, session)?;
    let step = &calibrated.step;
    for edits in &edits {
        warn_of_network(edits, step.program.ranks.len(), session);
    }
    let prices = Prices::new(&calibrated.calibration);
    let setting = prices.setting_of_devices(step);
    let base = Unedited::new(&step.program, &setting, &calibrated.calibration)?;
    calibrated.check_base(&base.recorded, session);
    let measured = measured(&args.measured, session)?;
    let draws = args.draws.into();
    let mut rows = Vec::new();
    for (path, edits) in args.edits.iter().zip(&edits) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let edited = base.with(&name, &edits.edit, draws);
        let edited = edited
            .map_err(|source| UsageError::Edits { path: path.clone(), source: Box::new(source) })?;
        rows.extend(edited.rows.into_iter().enumerate().map(|(at, row)| {
            let recorded = edited.program.ranks[at].copy_of.unwrap_or(at);
            let recorded_ns = Some(calibrated.recorded_ns(recorded));
            PredictedStepRow { recorded_ns, ..row }
        }));
    }
    if !measured.is_empty() {
        for row in &mut rows {
            let of_rank = measured.iter().find(|one| one.rank == row.rank);
            let of_rank = of_rank.ok_or(UsageError::NotMeasured { rank: row.rank })?;
            // The baseline is the prediction that the edits change nothing.
            let baseline_ns = row.base_ns.unwrap_or(row.step_ns) as f64;
            row.add_measured(of_rank.mean_ns, of_rank.noise_pct, baseline_ns);
        }
    }
    if let (Some(page), Some(edits)) = (&args.page, edits.last()) {
        let edited = EditedStepPage { title: &job_title(&args.paths), step, base };
        write_page(page, &edited.with(&edits.edit, draws)?)?;
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Warns about edits that add ranks, because the network between the new ranks was not recorded.
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

fn read_edits(path: &Path) -> Result<Edits, Error> {
    let text = fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let edits = toml::from_str(&text);
    Ok(edits.map_err(|source| UsageError::EditsFile {
        path: path.to_owned(),
        source: Box::new(source),
    })?)
}

/// Writes the page of a prediction. The page cannot be edited in the browser.
fn write_page(page: &Path, view: &Predicted) -> Result<(), Error> {
    let text = html::predicted_page(view, &PageOrigin::File)?;
    output::put(page, |file| file.write_all(text.as_bytes()).map_err(Error::io(page, "write")))
}
