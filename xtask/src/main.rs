//! All automation of the project: `cargo xtask {ci,tidy,bench,kernels,size,graph,map}`.
//!
//! Tasks read sources as text and run rowmill's programs. `xtask` does not depend on any crate of
//! the workspace.

mod bench;
mod ci;
mod command;
mod error;
mod function;
mod graph;
mod kernels;
mod map;
mod mask;
mod size;
mod tidy;
mod tree;

use std::process::ExitCode;

use error::Error;

const HELP: &str = "\
Automation of rowmill.

Usage: cargo xtask <TASK> [OPTIONS]

Tasks:
  ci      run everything that must pass before a change lands
  tidy    check the rules of ARCHITECTURE.md and STYLE.md
  bench   run the benchmarks of bench/definitions and record their figures
  kernels compile every GPU kernel without a GPU and compare its resources with the record
  size    print lines per crate and file, and the longest functions
  graph   print the dependencies between crates
  map     write docs/code-map.md, one line per source file

Run `cargo xtask <TASK> --help` for details.";

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
    let tasks: [(&str, &str, Task); 7] = [
        ("ci", ci::HELP, ci::run),
        ("tidy", tidy::HELP, tidy::run),
        ("bench", bench::HELP, bench::run),
        ("kernels", kernels::HELP, kernels::run),
        ("size", size::HELP, size::run),
        ("graph", graph::HELP, graph::run),
        ("map", map::HELP, map::run),
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

/// The function of a task, which gets the task's arguments and returns an error if a check failed.
type Task = fn(&[String]) -> Result<(), Error>;
