//! The command `rowmill predict what-if`, which predicts a step after edits, and compares it with
//! steps that were measured after the edits were really made.

use std::fs;
use std::io::Write;
use std::path::Path;

use predict::calibration::price::Prices;
use predict::calibration::shipped::JobKind;
use predict::edit::{self, Edit, Edits};
use predict::prediction::PredictedStepRow;
use predict::prediction::what_if::Unedited;
use predict::recording::{RankSetting, Setting};
use report::html::{self, PageOrigin};
use report::predicted::Predicted;
use trace::execution_trace::ExecutionTrace;

use super::calibrated::{predict_with_progress, read_step};
use super::execution_step::{DeviceAndHost, add_origin, read_execution_traces, report_execution};
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
    match &args.hardware {
        Some(hardware) => predict_graph(hardware, args, &edits, session),
        None => predict_recording(args, &edits, session),
    }
}

/// Predicts the edits of execution traces, whose tensors they follow.
fn predict_graph(
    hardware: &str,
    args: &PredictWhatIf,
    edits: &[Edits],
    session: &Session,
) -> Result<(), Error> {
    let traces = read_execution_traces(&args.execution_trace, session)?;
    let (file, overheads) = (args.calibration.as_deref(), args.overheads.as_deref());
    let kind = JobKind::from_traces(&traces);
    let device = DeviceAndHost::read(hardware, None, file, overheads, kind, session)?;
    let step = args.selection.step;
    let build = |traces: &[ExecutionTrace]| {
        device.build(traces, step).map_err(|source| add_origin(source, traces))
    };
    let (execution, calibration) = build(&traces)?;
    report_execution(&execution, step, session);
    let program = &execution.program;
    let setting = Setting { ranks: vec![RankSetting::default(); program.ranks.len()] };
    let base = Unedited::new(program, &setting, &calibration)?;
    let mut rows = Vec::new();
    for (path, edits) in args.edits.iter().zip(edits) {
        warn_of_network(edits, program.ranks.len(), session);
        let name_file = |source| UsageError::Edits { path: path.clone(), source: Box::new(source) };
        let mut traces = traces.clone();
        edit::tensors::apply(&mut traces, step, &edits.edit).map_err(name_file)?;
        let (execution, calibration) = build(&traces)?;
        let program = edit::apply_to_program(&execution.program, &edits.edit).map_err(name_file)?;
        let edited = predict_with_progress(args.draws, session, |draws| {
            base.compare(&edits_name(path), program, &calibration, draws)
        });
        rows.extend(edited?.rows);
    }
    add_measured(&mut rows, args, session)?;
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Predicts the edits of a recorded step.
fn predict_recording(
    args: &PredictWhatIf,
    edits: &[Edits],
    session: &Session,
) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let calibrated =
        read_step(args.calibration.as_deref(), args.selection, &traces, &scopes, session)?;
    let step = &calibrated.step;
    for edits in edits {
        warn_of_network(edits, step.program.ranks.len(), session);
    }
    let prices = Prices::new(&calibrated.calibration);
    let setting = prices.setting_of_devices(step);
    let base = Unedited::new(&step.program, &setting, &calibrated.calibration)?;
    calibrated.check_base(&base.recorded, session);
    let mut rows = Vec::new();
    for (path, edits) in args.edits.iter().zip(edits) {
        let edited = predict_with_progress(args.draws, session, |draws| {
            base.with(&edits_name(path), &edits.edit, draws)
        });
        let edited = edited
            .map_err(|source| UsageError::Edits { path: path.clone(), source: Box::new(source) })?;
        rows.extend(edited.rows.into_iter().enumerate().map(|(at, row)| {
            let recorded = edited.program.ranks[at].copy_of.unwrap_or(at);
            let recorded_ns = Some(calibrated.recorded_ns(recorded));
            PredictedStepRow { recorded_ns, ..row }
        }));
    }
    add_measured(&mut rows, args, session)?;
    if let (Some(page), Some(edits)) = (&args.page, edits.last()) {
        let edited = EditedStepPage { title: &job_title(&args.paths), step, base };
        let view =
            predict_with_progress(args.draws, session, |draws| edited.with(&edits.edit, draws));
        write_page(page, &view?)?;
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Returns the name of edits in tables, which is that of their file.
fn edits_name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Adds the steps that were measured after the edits were made, and the errors.
fn add_measured(
    rows: &mut [PredictedStepRow],
    args: &PredictWhatIf,
    session: &Session,
) -> Result<(), Error> {
    let measured = measured(&args.measured, session)?;
    for row in rows.iter_mut().filter(|_| !measured.is_empty()) {
        let of_rank = measured.iter().find(|one| one.rank == row.rank);
        let of_rank = of_rank.ok_or(UsageError::NotMeasured { rank: row.rank })?;
        // The baseline is the prediction that the edits change nothing.
        let baseline_ns = row.base_ns.unwrap_or(row.step_ns) as f64;
        row.add_measured(of_rank.mean_ns, of_rank.noise_pct, baseline_ns);
    }
    Ok(())
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
