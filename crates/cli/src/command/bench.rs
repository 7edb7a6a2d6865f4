//! `rowmill bench …`: how fast rowmill is here, against what this machine can do.

mod batch;
mod limit;
mod operation;
mod sample;
mod trace;
mod train;

use std::process::ExitCode;

use crate::args::Bench;
use crate::error::Error;
use crate::resolve::Session;

/// What the first Ctrl-C leads to.
const STOPPING: &str = "finishing the sample, then reporting what there is";

/// Runs the command.
pub fn run(bench: &Bench, session: &Session) -> Result<ExitCode, Error> {
    match bench {
        Bench::Train(args) => train::run(args, session),
        Bench::Trace(args) => trace::run(args, session).map(super::done),
    }
}
