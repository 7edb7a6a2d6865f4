//! `rowmill predict step --execution-trace`: a step that was never timed, by a calibration.

use std::path::PathBuf;

use predict::prediction::never_run;
use predict::program::Program;
use predict::program::from_execution_trace::{Execution, UnknownOperators};
use predict::recording::Setting;
use predict::step::execution_trace_time;
use schema::unit::counted;
use trace::execution_trace::{self, ExecutionTrace};
use trace::store::Loss;

use super::calibrated::{read_calibration, report_machine};
use super::model_step::Hardware;
use super::simulated_traces::write_traces;
use super::step::played;
use crate::args::{PlayedBy, PredictStep};
use setup::Session;
use setup::error::{Error, UsageError};
use setup::table_output::{self, TableTarget};

/// Runs `rowmill predict step --execution-trace` and prints its result.
pub fn run(args: &PredictStep, calibrated: &PathBuf, session: &Session) -> Result<(), Error> {
    let known = read_calibration(calibrated)?;
    report_machine(&known.machine, session);
    let traces = read(&args.execution_trace, session)?;
    let found = Program::from_execution(&traces, args.recorded.step, &known);
    let found = found.map_err(|source| named(&traces, source))?;
    say(&found, args.recorded.step, session);
    if args.mode != PlayedBy::Full {
        let setting = Setting::default();
        return played((&found.program, &setting, None), (args, &known), session);
    }
    let predicted = never_run::predict_program(&found.program, &known, args.drawn.into())?;
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &found.program, &predicted.simulation)?;
    }
    table_output::write_rows(session.console, &predicted.rows, TableTarget::default())
}

/// Prices what execution traces launch on a device by kernel models, without a calibration.
pub fn by_models(args: &PredictStep, session: &Session) -> Result<(), Error> {
    let name = args.hardware.as_deref().unwrap_or_default();
    let on = Hardware::from_name(name, args.host.models.as_deref())?;
    let Hardware::Devices(topology, models) = &on else {
        let expected = "a GPU, whose kernels execution traces launch".to_owned();
        return Err(predict::Error::Workload { expected, got: format!("the CPU {name:?}") }.into());
    };
    let traces = read(&args.execution_trace, session)?;
    let mut rows = Vec::new();
    for trace in &traces {
        let found =
            execution_trace_time::by_models(trace, args.recorded.step, models, &topology.device);
        rows.push(found.map_err(|source| named(&traces, source))?);
    }
    let opaque: usize = rows.iter().map(|row| row.opaque).sum();
    if opaque > 0 {
        session.console.warn(format_args!(
            "{} that nothing is known of, priced by the bytes of their tensors",
            counted(opaque as u64, "operator")
        ));
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// The execution traces of files, archives and folders, by rank.
pub fn read(paths: &[PathBuf], session: &Session) -> Result<Vec<ExecutionTrace>, Error> {
    let mut traces = Vec::new();
    for path in paths {
        traces.extend(execution_trace::read(path)?);
    }
    traces.sort_by_key(|trace| trace.rank);
    for trace in &traces {
        // What makes a trace unusable is refused, with its reason.
        let repaired = [Loss::BrokenText, Loss::DuplicateNode, Loss::RankConflict];
        for (loss, lost) in trace.losses.iter().filter(|(loss, _)| repaired.contains(loss)) {
            let what = match loss {
                Loss::BrokenText => "repaired",
                Loss::DuplicateNode => "left out",
                _ => "numbered by order of names",
            };
            let first = lost.first.first().map_or("", String::as_str);
            let count = counted(lost.count, "place");
            session.console.warn(format_args!("{}: {what}, {count}: {first}", trace.origin));
        }
    }
    Ok(traces)
}

/// An error with the file that it is about.
pub fn named(traces: &[ExecutionTrace], source: predict::Error) -> Error {
    let rank = match &source {
        predict::Error::Execution { rank, .. } => Some(*rank),
        _ => None,
    };
    match traces.iter().find(|trace| Some(trace.rank) == rank) {
        Some(trace) => UsageError::ExecutionTrace {
            origin: trace.origin.to_string(),
            source: Box::new(source),
        }
        .into(),
        None => source.into(),
    }
}

fn say(found: &Execution, step: usize, session: &Session) {
    let console = session.console;
    match found.is_marked {
        true => console.detail(format_args!(
            "step {step} of {}, by ProfilerStep",
            counted(found.steps as u64, "step")
        )),
        false => console.detail("one step, the whole execution trace: it marks no steps"),
    }
    if found.partial_collectives > 0 {
        console.warn(format_args!(
            "{} wait for nobody: not all of their ranks have an execution trace here",
            counted(found.partial_collectives as u64, "collective")
        ));
    }
    if !found.unknown.is_empty() {
        console.warn(format_args!(
            "{} of {} that the calibration never saw, priced by the bytes they move: {}",
            counted(found.unknown.values().sum(), "call"),
            counted(found.unknown.len() as u64, "operator"),
            most(&found.unknown)
        ));
    }
}

/// The names that occur most often.
fn most(unknown: &UnknownOperators) -> String {
    const SHOWN: usize = 8;
    let mut all: Vec<(&String, &u64)> = unknown.iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown: Vec<String> =
        all.iter().take(SHOWN).map(|(name, count)| format!("{name} ({count})")).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}
