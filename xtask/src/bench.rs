//! `cargo xtask bench`: trains the jobs of `bench/definitions` and records samples per second.
//! Runs the product as a user would; knows nothing of what is inside.

mod clock;
mod definition;
mod record;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command;
use crate::error::Error;
use crate::tree;
use definition::Definition;
use record::{Record, Sample};

pub const HELP: &str = "\
Trains the jobs of bench/definitions and appends medians to bench/record/<machine>/<date>.csv.

Usage: cargo xtask bench [NAME]... [OPTIONS]

Options:
  --list          the definitions, and stop
  --repeats N     runs of each definition [default: the definition's own]
  --threads N     threads of a run [default: all cores]
  --no-record     print only

Each run is `rowmill train CONFIG --synthetic ROWS --format json` with the definition's steps; the figure is
`samples_per_second` of its last line. The loss must be the definition's `expected_loss` and the
same in all runs: a wrong kernel fails instead of winning. Beside each figure stands the clock one core
seemed to run at just before; runs on a throttled or shared machine show there.";

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    names: Vec<String>,
    list: bool,
    repeats: Option<usize>,
    threads: Option<usize>,
    print_only: bool,
}

pub fn run(arguments: &[String]) -> Result<(), Error> {
    let request = parse(arguments)?;
    let root = tree::root();
    let definitions = chosen(definition::read_all(&root)?, &request.names)?;
    if request.list {
        for definition in &definitions {
            println!("{:<24} {}", definition.name, definition.about);
        }
        return Ok(());
    }
    command::run(command::cargo().args(["build", "--release"]).current_dir(&root))?;
    let mut records = Vec::new();
    for definition in &definitions {
        let record = measure(&root, definition, &request)?;
        println!("{}", record.summary());
        records.push(record);
    }
    if !request.print_only {
        let path = record::append(&root, &records)?;
        println!("recorded in {}", path.display());
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Request, Error> {
    let wrong = |problem| Error::Usage { task: "bench", problem };
    let mut request = Request::default();
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

fn chosen(all: Vec<Definition>, names: &[String]) -> Result<Vec<Definition>, Error> {
    let known: Vec<String> = all.iter().map(|definition| definition.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        let problem = format!("expected one of {}, got {name:?}", known.join(", "));
        return Err(Error::Usage { task: "bench", problem });
    }
    let wanted = |definition: &Definition| names.is_empty() || names.contains(&definition.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn measure(root: &Path, definition: &Definition, request: &Request) -> Result<Record, Error> {
    let folder = root.join("target/bench").join(&definition.name);
    let arguments = definition.arguments(request.threads);
    let mut samples = Vec::new();
    for _ in 0..request.repeats.unwrap_or(definition.repeats) {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
        }
        let clock_ghz = clock::apparent_ghz();
        let mut train = Command::new(root.join("target/release/rowmill"));
        train.args(&arguments).arg("--run").arg(&folder).current_dir(root);
        let sample = sample(&command::output(&mut train)?, clock_ghz).map_err(|problem| {
            Error::Program { command: format!("rowmill {}", arguments.join(" ")), problem }
        })?;
        definition.check(&sample, samples.first())?;
        samples.push(sample);
    }
    std::fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    Ok(Record::new(&definition.name, format!("rowmill {}", arguments.join(" ")), &samples))
}

/// Reads the last line of `rowmill train --format json`.
fn sample(output: &str, clock_ghz: f64) -> Result<Sample, String> {
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let json: Value = serde_json::from_str(last).map_err(|error| format!("{error} in {last:?}"))?;
    let number = |key: &str| {
        let value = json.pointer(key).and_then(Value::as_f64);
        value.ok_or_else(|| format!("expected a number at {key}, got {last}"))
    };
    Ok(Sample {
        samples_per_second: number("/samples_per_second")?,
        loss: number("/loss")?,
        steps: number("/step")?,
        clock_ghz,
    })
}

#[cfg(test)]
mod tests {
    use super::{Request, parse, sample};

    #[test]
    fn arguments() {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let request = parse(&owned(&["dlrm-ddp", "--repeats", "3", "--no-record"])).unwrap();
        let names = owned(&["dlrm-ddp"]);
        let expected = Request { names, repeats: Some(3), print_only: true, ..Request::default() };
        assert_eq!(request, expected);
        assert!(parse(&owned(&["--repeats", "0"])).is_err());
    }

    #[test]
    fn the_last_line_is_read_and_what_it_lacks_is_named() {
        let text = "{\"step\":1}\n{\"step\":9,\"samples_per_second\":5e3,\"loss\":0.5}\n\n";
        let sample = sample(text, 3.5).unwrap();
        assert_eq!((sample.samples_per_second, sample.loss, sample.steps), (5000.0, 0.5, 9.0));
        let problem = super::sample("{\"step\":1}", 3.5).unwrap_err();
        assert!(problem.starts_with("expected a number at /samples_per_second"), "{problem}");
    }
}
