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

use analyze::Scope;
use predict::calibration::{Calibration, Machine};
use predict::program::Program;
use predict::recording::{Span, Step};
use predict::simulate::{self, Simulation};
use trace::store::Trace;
use trace::{export, merge};

use crate::args::{Predict, Recorded};
use crate::command::trace::file::options;
use setup::Session;
use setup::error::Error;
use setup::output;
use setup::recorded_steps::{Steps, calibrate_steps, prepare_job, recorded_machine};

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
    let steps = Steps::find(scopes)?;
    let spans = steps.spans_of_step(steps.check_number(recorded.step)?);
    let job = prepare_job(scopes, session);
    let known = match path {
        None => calibrate_steps(&job, &steps, traces.len())?,
        Some(path) => {
            let given = calibration(path)?;
            check_machine(
                (path, &given.machine),
                &recorded_machine(traces),
                (recorded.force, session),
            )?;
            given
        }
    };
    Ok(Priced { step: job.step(&spans)?, known, spans })
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
    read.map_err(|source| Error::CalibrationFile { path: path.clone(), source: Box::new(source) })
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
