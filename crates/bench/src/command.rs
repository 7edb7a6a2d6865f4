//! The commands of `rowmill-bench`, one file each.

mod ablation;
mod alone;
mod data;
mod embedding;
mod gemm;
mod interaction;
mod limit;
mod operation;
mod plans;
mod predict;
pub mod published;
mod ranks;
mod sharding;
mod trace;
mod train;
mod turns;

use std::process::ExitCode;

use crate::args::BenchCommand;
use setup::Session;
use setup::error::Error;

/// Runs the chosen measurement of `rowmill-bench`.
pub fn run(bench: &BenchCommand, session: &Session) -> Result<ExitCode, Error> {
    match bench {
        BenchCommand::Train(args) => train::run(args, session),
        BenchCommand::Ablation(args) => ablation::run(args, session),
        BenchCommand::Plans(args) => plans::run(args, session),
        BenchCommand::Sharding(args) => sharding::run(args, session),
        BenchCommand::Embedding(args) => embedding::run(args, session),
        BenchCommand::Gemm(args) => gemm::run(args, session),
        BenchCommand::Interaction(args) => interaction::run(args, session),
        BenchCommand::Data(args) => data::run(args, session),
        BenchCommand::Trace(args) => trace::run(args, session).map(|()| ExitCode::SUCCESS),
        BenchCommand::Predict(args) => predict::run(args, session).map(|()| ExitCode::SUCCESS),
        BenchCommand::Published(args) => published::run(args, session).map(|()| ExitCode::SUCCESS),
    }
}
