//! All automation of the project: `cargo xtask {ci,tidy,bench,kernels,size,graph}`.
//!
//! Reads sources as text and runs the product as a program; links none of its crates.

mod bench;
mod ci;
mod command;
mod error;
mod function;
mod graph;
mod kernels;
mod mask;
mod size;
mod tidy;
mod tree;

use std::process::ExitCode;

use error::Error;

const HELP: &str = "\
All automation of rowmill.

Usage: cargo xtask <TASK> [OPTIONS]

Tasks:
  ci      everything that must pass before a change lands; prints the wall time of each stage
  tidy    the rules of ARCHITECTURE.md and STYLE.md that a machine can check
  bench   runs the benches of bench/definitions and records their figures
  kernels compiles every GPU kernel without a GPU; what each uses
  size    lines per crate and file, and the longest functions
  graph   which crate depends on which

`cargo xtask <TASK> --help` says more about a task.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(if matches!(error, Error::Usage { .. }) { 2 } else { 1 })
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Error> {
    let Some((task, rest)) = arguments.split_first() else {
        println!("{HELP}");
        return Ok(());
    };
    let tasks: [(&str, &str, Task); 6] = [
        ("ci", ci::HELP, ci::run),
        ("tidy", tidy::HELP, tidy::run),
        ("bench", bench::HELP, bench::run),
        ("kernels", kernels::HELP, kernels::run),
        ("size", size::HELP, size::run),
        ("graph", graph::HELP, graph::run),
    ];
    if matches!(task.as_str(), "--help" | "-h" | "help") {
        println!("{HELP}");
        return Ok(());
    }
    let Some((_, help, run)) = tasks.iter().find(|(name, ..)| name == task) else {
        let names = tasks.map(|(name, ..)| name).join(", ");
        let problem = format!("expected one of {names}, got {task:?}");
        return Err(Error::Usage { task: "", problem });
    };
    if rest.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        println!("{help}");
        return Ok(());
    }
    run(rest)
}

/// A task: its arguments in, its verdict out.
type Task = fn(&[String]) -> Result<(), Error>;
