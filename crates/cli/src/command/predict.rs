//! `rowmill predict …`: what a step would take. The predictions are in `predict`.

mod calibrate;
mod compare;
mod drawing;
mod evaluate;
mod execution;
pub mod findings;
mod kernel;
mod learn;
mod model;
mod next;
mod on_cpu;
mod overheads;
mod pareto;
mod priced;
pub mod resize;
mod serve;
mod step;
mod sweep;
pub mod what_if;

use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, StepMark, WindowRule, coverage};
use predict::calibration::{Calibration, Machine, collect};
use predict::program::Program;
use predict::recording::{Job, Span, Step, TensorSizes, spans};
use predict::simulate::{self, Simulation};
use schema::OpWork;
use serde_json::Value;
use trace::store::Trace;
use trace::{export, merge};

use crate::args::{Predict, Recorded};
use crate::command::trace::file::options;
use crate::command::trace::finding::{each_with_shapes, tensors};
use crate::error::Error;
use crate::output;
use crate::render;
use crate::resolve::Session;
use crate::resolve::trace::read;

/// Runs the command.
pub fn run(args: &Predict, session: &Session) -> Result<(), Error> {
    match args {
        Predict::Calibrate(args) => calibrate::run(args, session),
        Predict::Step(args) => step::run(args, session),
        Predict::Sweep(args) => sweep::run(args, session),
        Predict::WhatIf(args) => what_if::run(args, session),
        Predict::Resize(args) => resize::run(args, session),
        Predict::Model(args) => model::run(args, session),
        Predict::Compare(args) => compare::run(args, session),
        Predict::Next(args) => next::run(args, session),
        Predict::Findings(args) => findings::run(args, session),
        Predict::Serve(args) => serve::run(args, session),
        Predict::Evaluate(args) if args.kernels.kernels => kernel::evaluate::run(args, session),
        Predict::Evaluate(args) => evaluate::run(args, session),
        Predict::Overheads(args) => overheads::run(args, session),
        Predict::Hardware(args) => kernel::hardware::run(args, session),
        Predict::Kernels(args) => kernel::price::run(args, session),
        Predict::TrainKernels(args) => kernel::train::run(args, session),
        Predict::Learn(args) => learn::run(args, session),
    }
}

/// The traces of a job, as far as they can be predicted from.
pub fn recordings(paths: &[PathBuf], session: &Session) -> Result<Vec<Trace>, Error> {
    let mut traces = read(paths, session)?.job.traces;
    traces.iter_mut().for_each(coverage::trim);
    traces.retain(Trace::is_usable);
    if traces.is_empty() {
        return Err(predict::Error::TooFewRanks { expected: 1, got: 0 }.into());
    }
    Ok(traces)
}

/// Everything that was recorded.
pub fn scopes(traces: &[Trace]) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect()
}

/// The steps of a job that all ranks have.
pub struct Steps {
    /// The annotations that delimit them; `None` where the whole recording is one step.
    mark: Option<StepMark>,
    spans: Vec<Vec<Span>>,
}

impl Steps {
    /// The steps of all ranks.
    pub fn of(scopes: &[Scope<'_>]) -> Result<Self, Error> {
        let spans: Vec<Vec<Span>> = scopes.iter().map(spans).collect();
        for (scope, spans) in scopes.iter().zip(&spans) {
            if spans.is_empty() {
                let rank = scope.trace.rank;
                return Err(predict::Error::TooFewSteps { rank, expected: 1, got: 0 }.into());
            }
        }
        let mark = scopes.first().and_then(|scope| scope.step_mark);
        Ok(Self { mark, spans })
    }

    /// The number of a step that was asked for.
    fn checked(&self, step: usize) -> Result<usize, Error> {
        let count = self.count();
        if step < count { Ok(step) } else { Err(Error::NoSuchStep { step, count }) }
    }

    fn count(&self) -> usize {
        self.spans.iter().map(Vec::len).min().unwrap_or_default()
    }

    /// The spans of one step, per rank.
    pub fn one(&self, step: usize) -> Vec<Span> {
        self.spans.iter().map(|spans| spans[step]).collect()
    }
}

/// Prepares traces for reading steps, and says what will stay as it was measured.
pub fn job<'a>(scopes: &'a [Scope<'a>], session: &Session) -> Job<'a> {
    let job = Job::new(scopes, |rows| sizes(scopes, rows));
    if job.partial_collectives() > 0 {
        session.console.warn(format_args!(
            "{} collectives stay as measured, with their waits: not all of their ranks were recorded",
            render::count(job.partial_collectives() as u64)
        ));
    }
    job
}

/// Sizes of tensors as far as the files have them; each file is read once.
fn sizes(scopes: &[Scope<'_>], rows: &[Vec<u32>]) -> TensorSizes {
    let mut sizes = TensorSizes::default();
    each_with_shapes(scopes.iter().map(|scope| scope.trace), rows, |place, arguments| {
        let tensors = tensors(arguments.get("Input Dims"), arguments.get("Input type"));
        sizes.tensors.extend(tensors.map(|tensors| (place, tensors)));
        let number = |key: &str| arguments.get(key).and_then(Value::as_u64);
        if let (Some(flops), Some(bytes)) = (number("flops"), number("bytes")) {
            sizes.work.insert(place, OpWork { flops, bytes });
        }
    });
    sizes
}

/// The samples of all steps of a recording.
pub fn calibrated(job: &Job<'_>, steps: &Steps, ranks: usize) -> Result<Calibration, Error> {
    Ok(samples(&read_steps(job, steps)?, ranks, 0.0))
}

/// The steps of a recording.
fn read_steps(job: &Job<'_>, steps: &Steps) -> Result<Vec<Step>, Error> {
    (0..steps.count()).map(|number| Ok(job.step(&steps.one(number))?)).collect()
}

/// The samples of some steps, without what recording each event of theirs took.
fn samples(steps: &[Step], ranks: usize, event_ns: f64) -> Calibration {
    let all: Vec<usize> = (0..ranks).collect();
    let mut found = Calibration { event_ns, ..Calibration::default() };
    steps.iter().for_each(|step| collect::add(&mut found, step, &all));
    collect::add_factors(&mut found, steps, &all);
    found
}

/// A recorded step that is priced: by a calibration, or by that of its own recording.
pub struct Priced {
    step: Step,
    known: Calibration,
    spans: Vec<Span>,
}

/// Reads the step that arguments name.
fn priced(
    (path, recorded): (Option<&PathBuf>, Recorded),
    (traces, scopes): (&[Trace], &[Scope<'_>]),
    session: &Session,
) -> Result<Priced, Error> {
    let steps = Steps::of(scopes)?;
    let spans = steps.one(steps.checked(recorded.step)?);
    let job = job(scopes, session);
    let known = match path {
        None => calibrated(&job, &steps, traces.len())?,
        Some(path) => {
            let given = calibration(path)?;
            check_machine((path, &given.machine), &machine(traces), (recorded.force, session))?;
            given
        }
    };
    Ok(Priced { step: job.step(&spans)?, known, spans })
}

/// Where traces were recorded.
fn machine(traces: &[Trace]) -> Machine {
    let mut devices: Vec<String> = traces
        .iter()
        .flat_map(|trace| &trace.header.devices)
        .map(|device| device.name.clone())
        .collect();
    devices.sort();
    devices.dedup();
    let host = traces.iter().find_map(|trace| {
        let named = ["host", "hostname", "host_name"];
        named.iter().find_map(|key| trace.header.rest.get(*key)?.as_str())
    });
    Machine { host: host.unwrap_or_default().to_owned(), devices }
}

/// Writes a simulated step as traces into a folder, one per rank.
fn write_traces(folder: &Path, program: &Program, simulation: &Simulation) -> Result<(), Error> {
    let _made = output::folder(folder)?;
    for trace in simulate::traces(program, simulation) {
        let path = folder.join(format!("rank-{}.json", trace.rank));
        let _begun = output::cleared_up_beside(path.clone());
        export::write(&path, &merge::alone(&trace), &options())?;
    }
    Ok(())
}

fn calibration(path: &PathBuf) -> Result<Calibration, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let read = Calibration::from_json(&text);
    read.map_err(|source| Error::CalibrationFile { path: path.clone(), source })
}

/// Says where a calibration is from that prices what was never recorded.
fn say_machine(machine: &Machine, session: &Session) {
    let host = if machine.host.is_empty() { "an unknown host" } else { &machine.host };
    session.console.detail(format_args!("calibrated on {host}, {}", machine.devices.join(", ")));
}

/// Refuses a calibration of another host or other devices, or with `force` only says so.
fn check_machine(
    (path, calibrated): (&PathBuf, &Machine),
    recorded: &Machine,
    (force, session): (bool, &Session),
) -> Result<(), Error> {
    let differs = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
    let devices = |machine: &Machine| machine.devices.join(", ");
    let is_other = differs(&calibrated.host, &recorded.host)
        || differs(&devices(calibrated), &devices(recorded));
    if !is_other {
        return Ok(());
    }
    let named = |machine: &Machine| {
        let host = if machine.host.is_empty() { "unknown host" } else { &machine.host };
        format!("{host} with {}", devices(machine))
    };
    let error = Error::OtherMachine {
        path: path.clone(),
        expected: named(recorded),
        got: named(calibrated),
    };
    if force {
        session.console.warn(&error);
        return Ok(());
    }
    Err(error)
}
