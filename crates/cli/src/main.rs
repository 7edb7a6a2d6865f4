//! `rowmill`: one binary for everyone. Command line → resolved job → command → table or JSON.
//!
//! `args` (as typed) → `setup` (as meant) → `command/<verb>` → `setup::render`. Only this crate
//! knows terminals, signals and exit codes.

mod agent_client;
mod args;
mod capture_outcome;
mod capture_request;
mod command;
mod evaluation_text;
mod finding_text;
mod server;
mod trace_files;
mod trace_page;
mod trace_summary;

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::Cli;
use setup::{Session, help_wrap, interrupt};

/// Columns of traces and tables of models are large: on huge pages they cost fewer faults.
#[global_allocator]
static ALLOCATOR: device::buffer::HugePages = device::buffer::HugePages;

fn main() -> ExitCode {
    let mut command = help_wrap::wrap_help(Cli::command()).color(help_color());
    let matches = command.clone().get_matches();
    command.build();
    args::check_scopes(&command, &matches).unwrap_or_else(|error| error.exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let session = Session::new(&cli.global, Cli::command);
    match command::run(cli.command, &session) {
        Ok(code) => code,
        Err(error) if error.is_closed_output() => ExitCode::SUCCESS,
        Err(error) => {
            interrupt::let_it_end();
            session.console.fail(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// The colour of help and usage errors, which are printed while the arguments are still being read.
fn help_color() -> ColorChoice {
    // Arguments may be paths, and paths need not be UTF-8.
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let given = |choice: &str| {
        let joined = format!("--color={choice}");
        let pairs = args.windows(2).any(|pair| pair[0] == "--color" && pair[1] == choice);
        pairs || args.contains(&joined)
    };
    if given("never") {
        ColorChoice::Never
    } else if given("always") {
        ColorChoice::Always
    } else {
        ColorChoice::Auto
    }
}
