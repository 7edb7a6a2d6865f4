//! `rowmill predict …`: what a step would take. The predictions are in `predict`.

mod calibrate;
mod calibrated;
mod compare;
mod drawing;
mod evaluate;
mod execution;
mod findings;
mod kernel;
mod learn;
mod model;
mod model_step;
mod next;
mod on_cpu;
mod overheads;
mod pareto;
mod resize;
mod serve;
mod simulated_traces;
mod step;
mod sweep;
mod what_if;

use crate::args::Predict;
use setup::Session;
use setup::error::Error;

/// Runs the chosen verb of `rowmill predict`.
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
