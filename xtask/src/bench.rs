//! `cargo xtask bench`: runs the benches of `bench/definitions` and records their figures. The
//! programs measure themselves; this task chooses definitions and stores results.

mod definition;
mod record;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command;
use crate::error::Error;
use crate::tree;
use definition::Definition;
use record::BenchRecord;

pub const HELP: &str = "\
Runs the benchmarks of bench/definitions and appends their figures to
bench/record/<machine>/<date>.csv, one row per figure.

Usage: cargo xtask bench [NAME]... [OPTIONS]

Options:
  --list          list the definitions and exit
  --repeats N     repetitions of each benchmark [default: the benchmark's own]
  --threads N     threads of each benchmark [default: all cores]
  --no-record     print the figures without recording them

Each definition is a command of rowmill-bench, or rowmill doctor links, and names the figures of its
JSON output to record. Commands measure in turns with the limits of the machine and reject disturbed
samples. Each row has their number, the apparent clock and the CPU share of other processes. A definition may state
the expected loss, so that a kernel with wrong results fails instead of being fast.";

/// The parsed command line of `cargo xtask bench`.
#[derive(Debug, Default, PartialEq, Eq)]
struct BenchRequest {
    names: Vec<String>,
    list: bool,
    repeats: Option<usize>,
    threads: Option<usize>,
    print_only: bool,
}

/// Builds the programs, runs the chosen benchmarks and records their figures.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let request = parse_arguments(arguments)?;
    let root = tree::root();
    let definitions = choose_definitions(definition::read_all(&root)?, &request.names)?;
    if request.list {
        for definition in &definitions {
            println!("{:<24} {}", definition.name, definition.about);
        }
        return Ok(());
    }
    command::run(
        command::cargo()
            .args(["build", "--release", "-p", "rowmill", "-p", "bench"])
            .current_dir(&root),
    )?;
    let mut records = Vec::new();
    for definition in &definitions {
        let record = run_definition(&root, definition, &request)?;
        println!("{}", record.format_summary());
        records.push(record);
    }
    if !request.print_only {
        let path = record::append_records(&root, &records)?;
        println!("recorded in {}", path.display());
    }
    Ok(())
}

fn parse_arguments(arguments: &[String]) -> Result<BenchRequest, Error> {
    let wrong = |problem| Error::Usage { task: "bench", problem };
    let mut request = BenchRequest::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--list" => request.list = true,
            "--no-record" => request.print_only = true,
            "--repeats" | "--threads" => {
                let number = rest.next().and_then(|value| value.parse().ok()).filter(|&n| n > 0);
                let problem = || wrong(format!("{argument} expects a number of at least 1"));
                let number = Some(number.ok_or_else(problem)?);
                let is_repeats = argument == "--repeats";
                *(if is_repeats { &mut request.repeats } else { &mut request.threads }) = number;
            }
            other if other.starts_with('-') => {
                return Err(wrong(format!("unknown argument {other:?}")));
            }
            name => request.names.push(name.to_owned()),
        }
    }
    Ok(request)
}

fn choose_definitions(all: Vec<Definition>, names: &[String]) -> Result<Vec<Definition>, Error> {
    let known: Vec<String> = all.iter().map(|definition| definition.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        let problem = format!("expected one of {}, got {name:?}", known.join(", "));
        return Err(Error::Usage { task: "bench", problem });
    }
    let wanted = |definition: &Definition| names.is_empty() || names.contains(&definition.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn run_definition(
    root: &Path,
    definition: &Definition,
    request: &BenchRequest,
) -> Result<BenchRecord, Error> {
    let options = [("--threads", request.threads), ("--repeats", request.repeats)];
    let arguments = definition.arguments(&options);
    let shown = format!("{} {}", definition.program, arguments.join(" "));
    let mut bench = Command::new(root.join("target/release").join(&definition.program));
    let output = command::capture_output(bench.args(&arguments).current_dir(root))?;
    let record = parse_report(&output)
        .and_then(|report| BenchRecord::new(definition, shown.clone(), &report))
        .map_err(|problem| Error::Program { command: shown, problem })?;
    Ok(record)
}

/// Parses the last line of the output of `--format json`, which is the final report.
fn parse_report(output: &str) -> Result<Value, String> {
    // Warnings and progress of the program may precede the report.
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    serde_json::from_str(last).map_err(|error| format!("{error} in {last:?}"))
}

#[cfg(test)]
mod tests {
    use super::{BenchRequest, parse_arguments, parse_report};

    #[test]
    fn arguments() {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let request =
            parse_arguments(&owned(&["dlrm-ddp", "--repeats", "3", "--no-record"])).unwrap();
        let names = owned(&["dlrm-ddp"]);
        let expected =
            BenchRequest { names, repeats: Some(3), print_only: true, ..BenchRequest::default() };
        assert_eq!(request, expected);
        assert!(parse_arguments(&owned(&["--repeats", "0"])).is_err());
    }

    #[test]
    fn the_last_line_is_the_report() {
        let report = parse_report("{\"step\":1}\n{\"step\":9}\n\n").unwrap();
        assert_eq!(report["step"], 9);
        assert!(super::parse_report("hello").unwrap_err().ends_with("in \"hello\""));
    }
}
