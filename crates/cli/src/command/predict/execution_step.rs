//! The command `rowmill predict step --execution-trace`, which predicts a step that was never
//! timed, from a calibration or from kernel models.

use std::path::{Path, PathBuf};

use predict::calibration::Calibration;
use predict::calibration::price::Prices;
use predict::calibration::shipped::JobKind;
use predict::prediction;
use predict::program::Program;
use predict::program::from_execution_trace::{Execution, UnknownOperators, group_size};
use predict::step::{Models, execution_trace_time};
use schema::Topology;
use schema::unit::counted;
use trace::execution_trace::{self, ExecutionTrace};
use trace::store::Loss;

use super::calibrated::{
    predict_with_progress, read_calibration, report_machine, warn_of_other_job,
};
use super::hardware_step::Hardware;
use super::host_overheads::read_host;
use super::simulated_traces::write_traces;
use crate::args::PredictStep;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::table_output::{self, TableTarget};

/// Predicts the step of execution traces and prints it. Kernels are priced by models of the named
/// hardware, or else by the calibration.
pub fn run(args: &PredictStep, session: &Session) -> Result<(), Error> {
    let traces = read_execution_traces(&args.execution_trace, session)?;
    let number = args.selection.step;
    let (execution, calibration) = match (&args.hardware, &args.calibration) {
        (Some(name), _) => {
            let models = args.host.models.as_deref();
            let (file, overheads) = (args.calibration.as_deref(), args.overheads.as_deref());
            let kind = JobKind::from_traces(&traces);
            let priced = DeviceAndHost::read(name, models, file, overheads, kind, session)?;
            let found = priced.build(&traces, number);
            found.map_err(|source| add_origin(source, &traces))?
        }
        (None, Some(path)) => {
            let calibration = read_calibration(path)?;
            report_machine(&calibration.machine, session);
            let found = Program::from_execution(&traces, number, &calibration);
            (found.map_err(|source| add_origin(source, &traces))?, calibration)
        }
        (None, None) => {
            let expected = "--hardware or --calibration".to_owned();
            return Err(predict::Error::Workload { expected, got: "neither".to_owned() }.into());
        }
    };
    report_execution(&execution, number, session);
    if args.hardware.is_none() {
        report_grown(&execution.program, &calibration, session);
    }
    let program = &execution.program;
    let mut prediction = predict_with_progress(args.draws, session, |draws| {
        prediction::predict_never_run(program, &calibration, draws)
    })?;
    if args.calibration.is_none() {
        // Shared overheads were measured on another host.
        for row in &mut prediction.rows {
            row.modeled_pct += std::mem::take(&mut row.measured_pct);
        }
    }
    if args.hardware.is_none() {
        warn_of_other_job(&prediction.rows, session);
    }
    if let Some(folder) = &args.write_trace {
        write_traces(folder, program, &prediction.simulation)?;
    }
    table_output::write_rows(session.console, &prediction.rows, TableTarget::default())
}

/// A device whose kernels models price, with the times of its host.
pub struct DeviceAndHost {
    topology: Topology,
    models: Models,
    host: Calibration,
}

impl DeviceAndHost {
    /// Finds a device by name, with the host of a calibration, of named overheads, or of the
    /// nearest GPU.
    ///
    /// # Errors
    /// The hardware is unknown or a CPU, or a file cannot be read.
    pub fn read(
        name: &str,
        models: Option<&Path>,
        calibration: Option<&Path>,
        overheads: Option<&str>,
        kind: JobKind,
        session: &Session,
    ) -> Result<Self, Error> {
        let Hardware::Devices(topology, models) = Hardware::from_name(name, models)? else {
            let expected = "a GPU, because execution traces launch kernels".to_owned();
            let got = format!("the CPU {name:?}");
            return Err(predict::Error::Workload { expected, got }.into());
        };
        let models = models.with_shipped()?;
        let host = read_host(calibration, overheads, &topology, kind, session)?;
        if let Some(origin) = &host.origin {
            session.console.say(format_args!("host: {origin}"));
        }
        Ok(Self { topology: *topology, models, host: host.calibration })
    }

    /// Builds the program of a step of execution traces, with the calibration that prices it.
    ///
    /// # Errors
    /// As of [`execution_trace_time::on_device`], and hardware whose number of devices is not that
    /// of the ranks. Hardware without a number is one host with all ranks.
    pub fn build(
        &self,
        traces: &[ExecutionTrace],
        step: usize,
    ) -> Result<(Execution, Calibration), predict::Error> {
        let Self { topology, models, host } = self;
        let (ranks, devices) = (u64::from(group_size(traces)), topology.ranks());
        if devices > 1 && devices != ranks {
            let expected = format!("{ranks} devices, one for each rank of the execution traces");
            return Err(predict::Error::Workload { expected, got: format!("{devices} devices") });
        }
        execution_trace_time::on_device(traces, step, host, models, topology)
    }
}

/// Reads the execution traces in files, archives and folders, and sorts them by rank.
pub fn read_execution_traces(
    paths: &[PathBuf],
    session: &Session,
) -> Result<Vec<ExecutionTrace>, Error> {
    let mut traces = Vec::new();
    for path in paths {
        traces.extend(execution_trace::read(path)?);
    }
    traces.sort_by_key(|trace| trace.rank);
    for trace in &traces {
        // Other kinds of loss make an execution trace unusable, so they are refused when its
        // program is built.
        let repaired = [Loss::BrokenText, Loss::DuplicateNode, Loss::RankConflict];
        for (loss, lost) in trace.losses.iter().filter(|(loss, _)| repaired.contains(loss)) {
            let what = match loss {
                Loss::BrokenText => "repaired",
                Loss::DuplicateNode => "left out",
                _ => "ranks numbered by the order of file names",
            };
            let first = lost.first.first().map_or("", String::as_str);
            let count = counted(lost.count, "place");
            session.console.warn(format_args!("{}: {what}, {count}: {first}", trace.origin));
        }
    }
    Ok(traces)
}

/// Adds the name of the file to an error about one execution trace.
pub fn add_origin(source: predict::Error, traces: &[ExecutionTrace]) -> Error {
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

/// Warns if operators that run on the CPU are priced from other tensor sizes, because the
/// calibration has no samples of theirs.
fn report_grown(program: &Program, calibration: &Calibration, session: &Session) {
    let prices = Prices::new(calibration);
    let (grown, all) = prices.count_grown(program);
    if grown > 0 {
        session.console.warn(format_args!(
            "the calibration does not have the sizes of {grown} of {all} operators, whose times it \
             has at other sizes: they grow with the work of the tensors, and the interval counts \
             with a factor of 2; calibrate at a second batch size to do better"
        ));
    }
}

/// Prints what is incomplete in the program of execution traces.
pub fn report_execution(execution: &Execution, step: usize, session: &Session) {
    let console = session.console;
    match execution.is_marked {
        true => console.detail(format_args!(
            "step {step} of {}, as marked by ProfilerStep",
            counted(execution.steps as u64, "step")
        )),
        false => console.detail("no steps are marked: the whole execution trace is one"),
    }
    if execution.partial_collectives > 0 {
        console.warn(format_args!(
            "{} wait for nobody: not all of their ranks have an execution trace here",
            counted(execution.partial_collectives as u64, "collective")
        ));
    }
    if !execution.unknown.is_empty() {
        console.warn(format_args!(
            "{} of {} that neither the calibration nor the table of operators knows, priced by the \
             bytes they move: {}",
            counted(execution.unknown.values().sum(), "call"),
            counted(execution.unknown.len() as u64, "operator"),
            list_most_frequent(&execution.unknown)
        ));
    }
}

/// Lists the operator names that occur most often.
fn list_most_frequent(unknown: &UnknownOperators) -> String {
    const SHOWN: usize = 8;
    let mut all: Vec<(&String, &u64)> = unknown.iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown: Vec<String> =
        all.iter().take(SHOWN).map(|(name, count)| format!("{name} ({count})")).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}
