//! Reads `bench/definitions/*.toml`. A definition has a benchmark command, the figures to record,
//! and expected values that prove that the benchmark computed the right results.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;

const FOLDER: &str = "bench/definitions";

/// A benchmark as defined by one file of `bench/definitions`.
#[derive(Debug, PartialEq)]
pub struct Definition {
    /// Name of the benchmark, which is its file name without the extension.
    pub name: String,
    /// One line that describes the benchmark.
    pub about: String,
    /// Name of the program in `target/release`: `rowmill-bench`, or `rowmill` for measurements by
    /// its own commands.
    pub program: String,
    command: Vec<String>,
    /// Paths of the figures in the JSON output, such as `shapes/0/rate`.
    pub figures: Vec<String>,
    /// Expected values of some figures, such as a loss.
    expected: Vec<(String, f64)>,
    /// Allowed relative difference from an expected value, because instruction sets round
    /// differently.
    tolerance: f64,
}

/// Reads all definitions, sorted by name.
pub fn read_all(root: &Path) -> Result<Vec<Definition>, Error> {
    let folder = root.join(FOLDER);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(Error::io(&folder))? {
        let path = entry.map_err(Error::io(&folder))?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let shown = format!("{FOLDER}/{name}.toml");
        let parsed = parse(&name, &text);
        all.push(parsed.map_err(|problem| Error::Toml { path: shown, problem })?);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn parse(name: &str, text: &str) -> Result<Definition, String> {
    let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let mut take = |key: &str| table.remove(key).ok_or_else(|| format!("{key} is missing"));
    let text = |key: &str, value: &toml::Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{key} is not a text"))
    };
    let command = text("command", &take("command")?)?;
    let (program, command) = command.split_once(' ').ok_or("command names no program")?;
    let figures = take("figures")?;
    let figures = figures.as_array().ok_or("figures is not a list")?;
    let definition = Definition {
        name: name.to_owned(),
        about: text("about", &take("about")?)?,
        program: program.to_owned(),
        command: command.split_whitespace().map(str::to_owned).collect(),
        figures: figures.iter().map(|figure| text("figures", figure)).collect::<Result<_, _>>()?,
        expected: take("expected").ok().map_or(Ok(Vec::new()), |value| numbers(&value))?,
        tolerance: take("tolerance").ok().map_or(Ok(0.0), |value| number("tolerance", &value))?,
    };
    match table.keys().next() {
        Some(key) => Err(format!("unknown key {key}")),
        None => Ok(definition),
    }
}

fn numbers(value: &toml::Value) -> Result<Vec<(String, f64)>, String> {
    let table = value.as_table().ok_or("expected is not a table")?;
    table.iter().map(|(key, value)| Ok((key.clone(), number(key, value)?))).collect()
}

fn number(key: &str, value: &toml::Value) -> Result<f64, String> {
    value.as_float().ok_or_else(|| format!("{key}: expected a number like 0.5, got {value}"))
}

/// Returns the number at the path `place` in a report.
pub fn figure(report: &Value, place: &str) -> Result<f64, String> {
    let value = report.pointer(&format!("/{place}")).and_then(Value::as_f64);
    value.ok_or_else(|| format!("expected a number at {place}"))
}

impl Definition {
    /// Returns the arguments with which the program is started.
    pub fn arguments(&self, options: &[(&str, Option<usize>)]) -> Vec<String> {
        let mut all = self.command.clone();
        for (option, number) in options {
            let number = number.map(|number| [(*option).to_owned(), number.to_string()]);
            all.extend(number.into_iter().flatten());
        }
        all.extend(["--format".to_owned(), "json".to_owned()]);
        all
    }

    /// Refuses a run whose results differ from the expected values, so that a wrong kernel fails
    /// instead of being the fastest.
    pub fn check(&self, report: &Value) -> Result<(), String> {
        for (place, expected) in &self.expected {
            let (got, tolerance) = (figure(report, place)?, self.tolerance);
            let near = (got - expected).abs() <= tolerance * expected.abs();
            if !near {
                return Err(format!("{place}: expected {expected} (±{tolerance}), got {got}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{parse, read_all};

    const TEXT: &str = "about = \"a\"\ncommand = \"rowmill-bench train --config dlrm-ddp\"\n\
                        figures = [\"samples_per_s\", \"shapes/1/rate\"]\ntolerance = 1e-3\n\
                        expected = { warm_up_loss = 0.5 }\n";

    #[test]
    fn a_definition_becomes_a_command() {
        let definition = parse("x", TEXT).unwrap();
        let options = [("--threads", Some(2)), ("--repeats", None)];
        let expected = "train --config dlrm-ddp --threads 2 --format json";
        assert_eq!(definition.arguments(&options).join(" "), expected);
    }

    #[test]
    fn a_wrong_loss_fails_instead_of_winning() {
        let definition = parse("x", TEXT).unwrap();
        let report = |loss: f64| json!({"warm_up_loss": loss, "samples_per_s": 1e9});
        assert_eq!(definition.check(&report(0.5004)), Ok(()));
        // JSON cannot express NaN, which is written as null and must fail the check.
        for (loss, expected) in [(0.51, "warm_up_loss: expected 0.5"), (f64::NAN, "expected a num")]
        {
            let problem = definition.check(&report(loss)).unwrap_err();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }

    #[test]
    fn figures_lie_anywhere_in_a_report() {
        let report = json!({"shapes": [{"rate": 1.0}, {"rate": 2.5}]});
        assert_eq!(super::figure(&report, "shapes/1/rate"), Ok(2.5));
        let problem = super::figure(&report, "shapes/2/rate").unwrap_err();
        assert_eq!(problem, "expected a number at shapes/2/rate");
    }

    #[test]
    fn unknown_and_missing_keys_are_named() {
        assert_eq!(parse("x", &format!("a = 1\n{TEXT}")).unwrap_err(), "unknown key a");
        assert_eq!(parse("x", "about = \"a\"").unwrap_err(), "command is missing");
    }

    #[test]
    fn the_definitions_of_the_repository_are_valid() {
        let all = read_all(&crate::tree::root()).unwrap();
        assert!(all.iter().any(|definition| definition.name == "dlrm-default"));
        assert!(all.iter().all(|definition| !definition.figures.is_empty()));
    }
}
