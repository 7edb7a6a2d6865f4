//! Measured training steps of many configurations, and lookups called alone, as text: a line of
//! JSON for the machine, then one for each. Knows no model of them.

use schema::{DataType, HardwareSpec, IndexDistribution, Optimizer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::embedding::lookup::Cores;

/// Version of the text.
pub const STEPS_VERSION: u32 = 1;

/// The CPU that steps were measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its limits; `l2_bytes` are those of the last cache.
    pub spec: HardwareSpec,
    /// Bytes of the caches that single cores have, of all of them together.
    pub private_cache_bytes: u64,
    /// Threads of the trainer.
    pub threads: u32,
}

impl Machine {
    /// Its cores, as works are shared by them.
    #[must_use]
    pub fn cores(&self) -> Cores {
        let private = self.private_cache_bytes;
        Cores {
            threads: self.threads.max(1) as usize,
            private: private as f64,
            last: self.spec.l2_bytes.max(private) as f64,
        }
    }
}

/// The steps of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredStep {
    /// The configuration by name or file, and what was changed of it.
    pub config: String,
    /// Keys and values.
    pub set: Vec<(String, String)>,
    /// Ids of every bag.
    pub pooling: u32,
    /// Steps that count, undisturbed ones where there are enough, and all of them.
    pub steps: [u32; 2],
    /// What all threads read from memory meanwhile, GB/s: where the cores were.
    pub stream_gb_per_s: f64,
    /// A step: its operations and what lies between them.
    pub step_ns: f64,
    /// Its operations in their order, the median of each.
    pub ops: Vec<(String, f64)>,
}

/// Tables of one shape, and what a batch looks up in each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EqualTables {
    /// Tables, each with a feature of its own.
    pub count: usize,
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Ids of every bag.
    pub pooling: usize,
    /// Bags of each table.
    pub batch_size: usize,
    pub data_type: DataType,
    pub optimizer: Optimizer,
    /// How often each row is looked up.
    pub ids: IndexDistribution,
}

/// Lookups and row updates of some tables, without a model, each batch with ids of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTables {
    pub tables: EqualTables,
    /// Minutes apart, each with tables built anew.
    pub rounds: Vec<TablesRound>,
}

/// Medians of one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablesRound {
    /// Calls that count, undisturbed ones where there are enough, and all of them.
    pub calls: [u32; 2],
    /// What all threads read from memory meanwhile, GB/s: where the cores were.
    pub stream_gb_per_s: f64,
    /// A lookup in all tables.
    pub forward_ns: f64,
    /// The update of all rows that it read.
    pub backward_ns: f64,
}

/// Steps of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSteps {
    pub machine: Machine,
    pub steps: Vec<MeasuredStep>,
    /// Lookups and row updates alone; none in earlier measurements.
    pub tables: Vec<MeasuredTables>,
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    rowmill_steps: u32,
    machine: Machine,
}

impl MeasuredSteps {
    /// As text; [`MeasuredSteps::parse`] gives it back.
    ///
    /// # Errors
    /// [`Error::Model`] for numbers that JSON cannot hold.
    pub fn to_text(&self) -> Result<String, Error> {
        let head = Head { rowmill_steps: STEPS_VERSION, machine: self.machine.clone() };
        let mut lines = vec![json(&head)?];
        for step in &self.steps {
            lines.push(json(step)?);
        }
        for tables in &self.tables {
            lines.push(json(tables)?);
        }
        Ok(lines.join("\n") + "\n")
    }

    /// Reads the text.
    ///
    /// # Errors
    /// [`Error::Model`] for another version, and a line that is none; [`Error::Rows`] for steps
    /// without a positive time.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines();
        let head: Head = parsed(lines.next().unwrap_or_default(), 1)?;
        if head.rowmill_steps != STEPS_VERSION {
            let expected = format!("measured steps of version {STEPS_VERSION}");
            return Err(Error::Model { expected, got: format!("version {}", head.rowmill_steps) });
        }
        let numbered = (2u64..).zip(lines).filter(|(_, line)| !line.trim().is_empty());
        let mut found = Self { machine: head.machine, steps: Vec::new(), tables: Vec::new() };
        for (line, text) in numbered {
            let value: serde_json::Value = parsed(text, line)?;
            let times = if value.get("rounds").is_some() {
                let tables: MeasuredTables = from_line(value, line)?;
                let times = |round: &TablesRound| {
                    [round.forward_ns, round.backward_ns, round.stream_gb_per_s]
                };
                let times: Vec<f64> = tables.rounds.iter().flat_map(times).collect();
                found.tables.push(tables);
                times
            } else {
                let step: MeasuredStep = from_line(value, line)?;
                let times = step.ops.iter().map(|op| op.1);
                let times = times.chain([step.step_ns, step.stream_gb_per_s]).collect();
                found.steps.push(step);
                times
            };
            if let Some(bad) = times.into_iter().find(|ns| !ns.is_finite() || *ns <= 0.0) {
                return Err(Error::Rows {
                    count: 1,
                    rows: found.steps.len() + found.tables.len(),
                    line,
                    expected: "times and rates above 0".to_owned(),
                    got: bad.to_string(),
                });
            }
        }
        Ok(found)
    }
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Model {
        expected: "numbers that JSON holds".to_owned(),
        got: error.to_string(),
    })
}

fn parsed<'de, T: Deserialize<'de>>(text: &'de str, line: u64) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| wrong(&error, line))
}

fn from_line<T: DeserializeOwned>(value: serde_json::Value, line: u64) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| wrong(&error, line))
}

fn wrong(error: &serde_json::Error, line: u64) -> Error {
    let expected = format!("measured steps of rowmill predict learn in line {line}");
    Error::Model { expected, got: error.to_string() }
}
