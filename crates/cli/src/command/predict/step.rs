//! `rowmill predict step`: a recorded step by a calibration.

use predict::calibration::{Calibration, constants};
use predict::evaluate::error_pct;
use predict::mode::{self, Mode};
use predict::overheads;
use predict::prediction::{self, PredictionRow};
use predict::program::Program;
use predict::recording::{Setting, Span};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{check_machine, read_calibration};
use super::simulated_traces::write_traces;
use crate::args::{PlayedBy, PredictStep};
use setup::Session;
use setup::error::Error;
use setup::recorded_steps::{Steps, open_recordings, prepare_job, recorded_machine, whole_scopes};
use setup::render;
use setup::table_output::{self, TableTarget};

/// Runs `rowmill predict step` and prints its result.
pub fn run(args: &PredictStep, session: &Session) -> Result<(), Error> {
    if args.model.is_some() {
        return super::model_step::step(args, launch_ns(args, session)?, session);
    }
    let Some(path) = &args.calibration else { return super::execution::by_models(args, session) };
    if !args.execution_trace.is_empty() {
        return super::execution::run(args, path, session);
    }
    let calibration_of = read_calibration(path)?;
    let traces = open_recordings(&args.paths, session)?;
    let recorded = recorded_machine(&traces);
    let calibrated = (path, &calibration_of.machine);
    check_machine(calibrated, &recorded, (args.recorded.force, session))?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    say_steps(&steps, session);
    let job = prepare_job(&scopes, session);
    let step = job.step(&steps.spans_of_step(steps.check_number(args.recorded.step)?))?;
    if args.mode != PlayedBy::Full {
        let setting = step.recorded.setting(&step.program);
        let measured: Vec<i64> = step.recorded.ranks.iter().map(|rank| rank.step_ns).collect();
        let of = (&step.program, &setting, Some(measured.as_slice()));
        return played(of, (args, &calibration_of), session);
    }
    let predicted = prediction::predict_step(&step, &calibration_of, args.drawn.into())?;
    let mut rows = predicted.rows;
    for (row, spans) in rows.iter_mut().zip(&steps.spans) {
        add_spread(row, spans);
    }
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &step.program, &predicted.simulation)?;
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// What the host needs for each launch: as typed, or as a calibration has it.
fn launch_ns(args: &PredictStep, session: &Session) -> Result<f64, Error> {
    let Some(path) = &args.calibration else { return Ok(1e3 * args.host.launch_us) };
    let known = read_calibration(path)?;
    let found = overheads::host_ns_per_launch(&known);
    let Some(ns) = found else {
        let source = predict::Error::Calibration {
            expected: "launches of a GPU's kernels".to_owned(),
            got: "none".to_owned(),
        };
        return Err(source.into());
    };
    session.console.detail(format_args!("the host needs {} for a launch", render::nanos(ns)));
    Ok(ns)
}

/// A step as the published ways have it: they know when it ends, and nothing of what happens in it.
#[derive(Serialize, TableRow)]
struct PlayedRow {
    rank: u32,
    mode: Mode,
    step_ns: i64,
    measured_ns: Option<i64>,
    error_pct: Option<f64>,
}

/// Prints the step of another mode than the full one.
pub fn played(
    (program, setting, measured): (&Program, &Setting, Option<&[i64]>),
    (args, calibration): (&PredictStep, &Calibration),
    session: &Session,
) -> Result<(), Error> {
    let mode = args.mode.into();
    let constants = constants::derive_constants(calibration);
    let steps = mode::predict_step_times(program, setting, calibration, &constants, mode)?;
    let row = |(at, step_ns): (usize, i64)| {
        let measured_ns = measured.map(|measured| measured[at]);
        let error_pct = measured_ns.map(|measured| error_pct(step_ns, measured));
        PlayedRow { rank: program.ranks[at].rank, mode, step_ns, measured_ns, error_pct }
    };
    let rows: Vec<PlayedRow> = steps.into_iter().enumerate().map(row).collect();
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

fn say_steps(steps: &Steps, session: &Session) {
    let what = match steps.mark {
        Some(mark) => mark.source().unwrap_or("ProfilerStep"),
        None => "the whole recording: it marks no steps",
    };
    session.console.detail(format_args!("{} steps, by {what}", steps.count()));
}

/// How much the recorded steps differ, and how far off their mean is.
fn add_spread(row: &mut PredictionRow, spans: &[Span]) {
    if spans.len() < 2 {
        return;
    }
    let lengths: Vec<f64> = spans.iter().map(|span| (span.end - span.start) as f64).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let square: f64 = lengths.iter().map(|length| (length - mean).powi(2)).sum();
    row.noise_pct = Some(100.0 * (square / lengths.len() as f64).sqrt() / mean.max(1.0));
    let measured = row.measured_ns.max(1) as f64;
    row.baseline_error_pct = Some(100.0 * (mean - measured) / measured);
}
