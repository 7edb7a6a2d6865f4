//! The binary `rowmill`, which parses the command line, runs one command, and prints its result.
//!
//! `args` defines the options as typed, and `setup` resolves them into jobs and devices.
//! `command/<verb>` runs the command, and `setup::render` prints tables or JSON. Only this crate
//! and `setup` deal with terminals, signals and exit codes.

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

/// The memory allocator, which puts large buffers such as the columns of traces and the tables of
/// models on huge pages. Huge pages cause fewer page faults.
#[global_allocator]
static ALLOCATOR: device::buffer::HugePages = device::buffer::HugePages;

fn main() -> ExitCode {
    let mut command = help_wrap::wrap_help(Cli::command()).color(find_help_color());
    let matches = command.clone().get_matches();
    // Building resolves the arguments of subcommands, which `check_scopes` looks up by name.
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

/// Finds the value of `--color` for help and usage errors. Clap prints these while it is still
/// parsing the arguments, so the parsed value is not available.
fn find_help_color() -> ColorChoice {
    // `args()` is not used, because it panics on arguments that are not UTF-8, which paths may be.
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
