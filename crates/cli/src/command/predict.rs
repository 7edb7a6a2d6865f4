//! The commands `rowmill predict …`, which read recordings and calibrations, and print predicted
//! steps. The predictions are computed in the crates `predict` and `kernel_model`.

mod calibrate;
mod calibrated;
mod compare;
pub mod drawing;
mod error_drawing;
mod evaluate;
mod execution_step;
mod findings;
pub mod hardware_step;
mod host_overheads;
mod kernel;
mod learn;
mod next;
mod on_cpu;
mod overheads;
mod pareto;
mod published;
mod resize;
mod serve;
mod simulated_traces;
mod step;
mod suite_jobs;
mod suite_tables;
mod sweep;
mod trainer_step;
mod what_if;

use crate::args::{FormerWords, NextRows, Predict, PredictStep};
use setup::Session;
use setup::error::{Error, UsageError};

/// Runs the chosen verb of `rowmill predict`.
pub fn run(args: &Predict, session: &Session) -> Result<(), Error> {
    match args {
        Predict::Calibrate(args) if args.overheads => overheads::run(args, session),
        Predict::Calibrate(args) => calibrate::run(args, session),
        Predict::Step(args) => predict_step(args, session),
        Predict::Sweep(args) => sweep::run(args, session),
        Predict::WhatIf(args) => what_if::run(args, session),
        Predict::Resize(args) => resize::run(args, session),
        Predict::Next(args) if args.by == NextRows::Finding => findings::run(args, session),
        Predict::Next(args) => next::run(args, session),
        Predict::Serve(args) => serve::run(args, session),
        Predict::Evaluate(args) if args.published => published::run(session),
        Predict::Evaluate(args) if args.tables => suite_tables::run(args, session),
        Predict::Evaluate(args) if args.kernels.kernels => kernel::evaluate::run(args, session),
        Predict::Evaluate(args) if !args.measured.is_empty() => compare::run(args, session),
        Predict::Evaluate(args) => evaluate::run(args, session),
        Predict::Kernels(args) => match &args.list_hardware {
            Some(devices) => kernel::hardware::run(devices, args, session),
            None => kernel::price::run(args, session),
        },
        Predict::Learn(args) if args.kernels => kernel::train::run(args, session),
        Predict::Learn(args) => learn::run(args, session),
        Predict::Model(former) => Err(moved("model", "step --model", former)),
        Predict::Compare(former) => Err(moved("compare", "evaluate", former)),
        Predict::Findings(former) => Err(moved("findings", "next --by finding", former)),
        Predict::Overheads(former) => Err(moved("overheads", "calibrate --overheads", former)),
        Predict::Hardware(former) => Err(moved("hardware", "kernels --list-hardware", former)),
        Predict::TrainKernels(former) => Err(moved("train-kernels", "learn --kernels", former)),
    }
}

/// Predicts a step from the inputs that the user names: a configuration, execution traces or a
/// recording, together with hardware or a calibration.
fn predict_step(args: &PredictStep, session: &Session) -> Result<(), Error> {
    if args.overheads.as_deref() == Some(host_overheads::LIST) {
        return host_overheads::list(session);
    }
    match (&args.model, &args.hardware, &args.calibration) {
        (Some(config), Some(hardware), _) => hardware_step::run(config, hardware, args, session),
        (Some(config), None, Some(file)) => trainer_step::run(config, file, args, session),
        (None, None, Some(file)) if args.execution_trace.is_empty() => {
            step::run(file, args, session)
        }
        _ => execution_step::run(args, session),
    }
}

/// Creates the error for the former name of a command, with a hint that shows the present command
/// line.
fn moved(was: &str, now: &str, former: &FormerWords) -> Error {
    let words: Vec<&str> = ["rowmill predict", now]
        .into_iter()
        .chain(former.words.iter().map(String::as_str))
        .collect();
    UsageError::MovedCommand { was: format!("predict {was}"), now: words.join(" ") }.into()
}
