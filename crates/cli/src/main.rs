//! The binary `rowmill`: parses the command line, runs one command, and prints its result.
//!
//! `args` has the options as typed. `setup` resolves them into jobs and devices. `command/<verb>`
//! runs the command, and `setup::render` prints tables or JSON. Only this crate and `setup` deal
//! with terminals, signals and exit codes.

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

/// Puts the columns of traces and the tables of models on huge pages, which cause fewer page
/// faults.
#[global_allocator]
static ALLOCATOR: device::buffer::HugePages = device::buffer::HugePages;

fn main() -> ExitCode {
    let mut command = help_wrap::wrap_help(Cli::command()).color(find_help_color());
    let matches = command.clone().get_matches();
    // Resolves the arguments of subcommands, which `check_scopes` looks up by name.
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

/// Finds the value of `--color` for help and usage errors. Clap prints those while it is still
/// parsing the arguments, so its own result cannot be used.
fn find_help_color() -> ColorChoice {
    // Not `args()`, which panics on arguments that are not UTF-8, as paths may be.
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
