//! `bench/definitions/*.toml`: what is trained, for how long, and the loss that proves it was.

use std::path::Path;

use crate::bench::record::Sample;
use crate::error::Error;

const FOLDER: &str = "bench/definitions";

/// A job to time.
#[derive(Debug, PartialEq)]
pub struct Definition {
    /// The file's name without its end.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// How often it runs.
    pub repeats: usize,
    config: String,
    synthetic_rows: u64,
    steps: u64,
    set: Vec<(String, String)>,
    /// What the last step's loss must be; none until the first figures of a new definition are in.
    expected_loss: Option<f64>,
    /// Relative; other instruction sets round otherwise.
    tolerance: f64,
}

/// Reads every definition, by name.
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
    let text = |key: &str, value: toml::Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{key} is not a text"))
    };
    let count = |key: &str, value: toml::Value| {
        let number = value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
        number.ok_or_else(|| format!("{key}: expected at least 1, got {value}"))
    };
    let float = |key: &str, value: toml::Value| {
        value.as_float().ok_or_else(|| format!("{key}: expected a number like 0.5, got {value}"))
    };
    let definition = Definition {
        name: name.to_owned(),
        about: text("about", take("about")?)?,
        config: text("config", take("config")?)?,
        repeats: count("repeats", take("repeats")?)? as usize,
        synthetic_rows: count("synthetic_rows", take("synthetic_rows")?)?,
        steps: count("steps", take("steps")?)?,
        expected_loss: take("expected_loss").ok().map(|v| float("expected_loss", v)).transpose()?,
        tolerance: float("tolerance", take("tolerance")?)?,
        set: settings(take("set")?)?,
    };
    match table.keys().next() {
        Some(key) => Err(format!("unknown key {key}")),
        None => Ok(definition),
    }
}

fn settings(value: toml::Value) -> Result<Vec<(String, String)>, String> {
    let toml::Value::Table(table) = value else { return Err("set is not a table".to_owned()) };
    Ok(table.into_iter().map(|(key, value)| (key, value.to_string())).collect())
}

impl Definition {
    /// The arguments of `rowmill`, the run's folder left out.
    pub fn arguments(&self, threads: Option<usize>) -> Vec<String> {
        let rows = self.synthetic_rows.to_string();
        let mut all = vec!["train", &self.config, "--synthetic", &rows, "--format", "json"];
        let threads = threads.map(|threads| threads.to_string());
        if let Some(threads) = &threads {
            all.extend(["--threads", threads]);
        }
        let mut all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let steps = ("training.steps".to_owned(), self.steps.to_string());
        for (key, value) in self.set.iter().chain([&steps]) {
            all.extend(["--set".to_owned(), format!("{key}={value}")]);
        }
        all
    }

    /// Refuses a run that computed something else than expected, or than the first run did.
    pub fn check(&self, sample: &Sample, first: Option<&Sample>) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Check { what: format!("{}: {what}", self.name) });
        if sample.steps != self.steps as f64 {
            return refuse(format!("expected {} steps, got {}", self.steps, sample.steps));
        }
        let (got, tolerance) = (sample.loss, self.tolerance);
        let near = |expected: f64| (got - expected).abs() <= tolerance * expected.abs();
        match self.expected_loss {
            Some(expected) if !near(expected) => {
                return refuse(format!("expected a loss of {expected} (±{tolerance}), got {got}"));
            }
            Some(_) => {}
            None => eprintln!("{}: no expected_loss yet; the loss is {got}", self.name),
        }
        match first {
            Some(first) if first.loss != got => {
                refuse(format!("expected the first run's loss {}, got {got}", first.loss))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, read_all};
    use crate::bench::record::Sample;

    const TEXT: &str = "about = \"a\"\nconfig = \"dlrm-ddp\"\nrepeats = 2\nsynthetic_rows = 100\n\
                        steps = 5\nexpected_loss = 0.5\ntolerance = 1e-3\n[set]\nrows_cap = 10\n";

    #[test]
    fn a_definition_becomes_a_command() {
        let definition = parse("x", TEXT).unwrap();
        let expected = "train dlrm-ddp --synthetic 100 --format json --threads 2 --set rows_cap=10 \
                        --set training.steps=5";
        assert_eq!(definition.arguments(Some(2)).join(" "), expected);
    }

    #[test]
    fn a_wrong_loss_fails_instead_of_winning() {
        let definition = parse("x", TEXT).unwrap();
        let sample = |loss| Sample { samples_per_second: 1e9, loss, steps: 5.0, clock_ghz: 3.0 };
        assert!(definition.check(&sample(0.5004), None).is_ok());
        for loss in [0.51, f64::NAN] {
            let error = definition.check(&sample(loss), None).unwrap_err().to_string();
            assert!(error.starts_with("x: expected a loss of 0.5"), "{error}");
        }
        assert!(definition.check(&sample(0.5001), Some(&sample(0.5))).is_err());
    }

    #[test]
    fn unknown_and_missing_keys_are_named() {
        assert_eq!(parse("x", &format!("a = 1\n{TEXT}")).unwrap_err(), "unknown key a");
        assert_eq!(parse("x", "about = \"a\"").unwrap_err(), "config is missing");
    }

    #[test]
    fn the_definitions_of_the_repository_are_valid() {
        let all = read_all(&crate::tree::root()).unwrap();
        assert!(all.iter().any(|definition| definition.name == "dlrm-criteo-kaggle"));
    }
}
