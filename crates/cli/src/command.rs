//! The commands of `rowmill`, with one file for each command.

mod capture;
mod checkpoint;
mod data;
mod doctor;
mod eval;
mod explain;
mod fleet;
mod init;
mod plan;
mod predict;
mod quickstart;
mod report;
mod score;
mod trace;
pub mod train;
mod tune;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, Command};
use setup::Session;
use setup::args::OutputFormat;
use setup::error::{Error, UsageError};
use setup::output;

/// Runs a command and returns its exit code.
///
/// # Errors
/// The output format does not suit the command, an output cannot be written, or the command fails.
pub fn run(command: Command, session: &Session) -> Result<ExitCode, Error> {
    let is_findings = matches!(&command, Command::Trace(trace) if trace.is_findings());
    if session.console.format == OutputFormat::Sarif && !is_findings {
        return Err(UsageError::NoSarif.into());
    }
    let has_rows = match &command {
        Command::Trace(trace) => trace.has_rows(),
        Command::Predict(predict) => predict.has_rows(),
        Command::Plan(_) | Command::Tune(_) => true,
        _ => false,
    };
    if !has_rows && !matches!(session.console.format, OutputFormat::Table | OutputFormat::Json) {
        return Err(UsageError::NoTable.into());
    }
    let is_printed = matches!(&command, Command::Plan(_) | Command::Tune(_));
    if is_printed && session.console.format == OutputFormat::Parquet {
        return Err(UsageError::NoParquet.into());
    }
    // The outputs are checked before the work begins, so that an hour of work does not end at a
    // file that cannot be written.
    let outputs = command.outputs();
    output::check_different(&command.inputs(), &outputs)?;
    output::check_all(&outputs)?;
    match command {
        Command::Quickstart(quickstart) => quickstart::run(&quickstart, session),
        Command::Init(init) => init::run(&init, session).map(done),
        Command::Train(train) => train::run(&train, session),
        Command::Eval(eval) => eval::run(&eval, session),
        Command::Score(score) => score::run(&score, session),
        Command::Report(report) => report::run(&report, session).map(done),
        Command::Data(data) => data::run(data, session).map(done),
        Command::Checkpoint(checkpoint) => checkpoint::run(checkpoint, session).map(done),
        Command::Trace(trace) => trace::run(&trace, session),
        Command::Predict(predict) => predict::run(&predict, session).map(done),
        Command::Plan(args) => plan::run(&args, session).map(done),
        Command::Tune(tune) => tune::run(&tune, session).map(done),
        Command::Capture(capture) => capture::run(&capture, session),
        Command::Fleet(fleet) => fleet::run(&fleet, session),
        Command::Doctor(doctor) => doctor::run(&doctor, session),
        Command::Explain(explain) => explain::run(&explain, session).map(done),
        Command::Bench { words } => Err(moved_command(&words)),
        Command::Completions { shell } => print_completions(shell, session).map(done),
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Creates the error for `rowmill bench …`, which names the command that replaced it.
fn moved_command(words: &[String]) -> Error {
    let (first, rest) = words.split_first().map_or(("", &[][..]), |(a, b)| (a.as_str(), b));
    let now = match first {
        "comm" => ("rowmill doctor links", rest),
        _ => ("rowmill-bench", words),
    };
    let now = std::iter::once(now.0).chain(now.1.iter().map(String::as_str));
    UsageError::MovedCommand { was: "bench".to_owned(), now: now.collect::<Vec<_>>().join(" ") }
        .into()
}

fn print_completions(shell: Shell, session: &Session) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rowmill", &mut script);
    session.console.print(String::from_utf8_lossy(&script).trim_end())
}
