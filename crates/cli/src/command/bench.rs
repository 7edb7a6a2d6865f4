//! `rowmill bench …`: how fast rowmill is here, against what this machine can do.

mod alone;
pub mod batch;
mod comm;
mod data;
pub mod embedding;
mod gemm;
mod interaction;
mod limit;
pub mod operation;
mod predict;
pub mod sample;
mod trace;
pub mod train;
mod turns;

use std::process::ExitCode;

use serde::Serialize;

use crate::args::BenchCommand;
use crate::error::{EXIT_INTERRUPTED, Error};
use crate::resolve::Session;
use sample::Quality;

/// What the first Ctrl-C leads to.
const STOPPING: &str = "finishing the sample, then reporting what there is";

/// Runs the command.
pub fn run(bench: &BenchCommand, session: &Session) -> Result<ExitCode, Error> {
    match bench {
        BenchCommand::Train(args) => train::run(args, session),
        BenchCommand::Embedding(args) => embedding::run(args, session),
        BenchCommand::Gemm(args) => gemm::run(args, session),
        BenchCommand::Interaction(args) => interaction::run(args, session),
        BenchCommand::Comm(args) => comm::run(args, session),
        BenchCommand::Data(args) => data::run(args, session),
        BenchCommand::Trace(args) => trace::run(args, session).map(super::done),
        BenchCommand::Predict(args) => predict::run(args, session).map(super::done),
    }
}

/// Warns of disturbed samples and prints the report; the exit code.
fn conclude<T: Serialize>(
    session: &Session,
    (quality, interrupted): (&Quality, bool),
    report: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<ExitCode, Error> {
    if let Some(warning) = quality.warning() {
        session.console.warn(warning);
    }
    session.console.report(report, table)?;
    Ok(ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { 0 }))
}
