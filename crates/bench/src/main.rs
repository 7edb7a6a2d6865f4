//! `rowmill-bench` measures rowmill on this machine, in turns with the limits of the machine. This
//! program is for the developers of rowmill. Users measure their own jobs with `rowmill`.

mod args;
mod command;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use setup::{Session, help_wrap, interrupt};

use args::BenchCli;

/// Uses large pages, which reduce the page faults of large arrays such as columns of traces and
/// tables of models.
#[global_allocator]
static ALLOCATOR: device::buffer::HugePages = device::buffer::HugePages;

fn main() -> ExitCode {
    let matches = help_wrap::wrap_help(BenchCli::command()).get_matches();
    let cli = BenchCli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let session = Session::new(&cli.global, BenchCli::command);
    match command::run(&cli.command, &session) {
        Ok(code) => code,
        Err(error) if error.is_closed_output() => ExitCode::SUCCESS,
        Err(error) => {
            interrupt::let_it_end();
            session.console.fail(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
