//! Measured training steps of many configurations, and lookups measured alone.
//!
//! The file has JSON lines: the machine first, then one line per step or set of tables.

use schema::{DataType, HardwareSpec, IndexDistribution, Optimizer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::embedding::lookup::Cores;

/// Version of the text format of measured steps.
pub const STEPS_VERSION: u32 = 1;

/// The CPU on which steps were measured: hardware limits and the number of trainer threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Hardware limits, in which `l2_bytes` is the size of the last-level cache.
    pub spec: HardwareSpec,
    /// Total size of the private caches of all cores, in bytes.
    pub private_cache_bytes: u64,
    /// Number of threads of the trainer.
    pub threads: u32,
}

impl Machine {
    /// Returns the cores and caches that share the work of a call.
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

/// Measured training steps of one configuration: medians of the step and of each operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredStep {
    /// Name or file of the base configuration.
    pub config: String,
    /// Overrides of the base configuration, as keys and values.
    pub set: Vec<(String, String)>,
    pub pooling: u32,
    /// Number of steps that the medians include, and number of steps in total. Disturbed steps are
    /// excluded if enough undisturbed ones exist.
    pub steps: [u32; 2],
    /// Read bandwidth of all threads during the measurement in GB/s, which reveals the cores that
    /// were used.
    pub stream_gb_per_s: f64,
    pub step_ns: f64,
    /// Name and median time of each operation, in nanoseconds, in the order of the step.
    pub ops: Vec<(String, f64)>,
}

/// Embedding tables of one shape, and the batch that is looked up in them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EqualTables {
    /// Number of tables. Each table has its own feature.
    pub count: usize,
    pub rows: u64,
    /// Number of elements in a row.
    pub dim: usize,
    /// Number of ids in every bag.
    pub pooling: usize,
    /// Number of bags that are looked up in each table.
    pub batch_size: usize,
    pub data_type: DataType,
    pub optimizer: Optimizer,
    pub ids: IndexDistribution,
}

/// Lookups and row updates that were measured without a model. Each batch has new ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTables {
    pub tables: EqualTables,
    /// One entry per round of measurements. Rounds are minutes apart, and each allocates new
    /// tables.
    pub rounds: Vec<TablesRound>,
}

/// Median times of one round of lookups and row updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablesRound {
    /// Number of calls that the medians include, and number of calls in total. Disturbed calls are
    /// excluded if enough undisturbed ones exist.
    pub calls: [u32; 2],
    /// Read bandwidth of all threads during the round, in GB/s.
    pub stream_gb_per_s: f64,
    pub forward_ns: f64,
    pub backward_ns: f64,
}

/// All measurements of one machine, in the form that `rowmill predict learn` writes.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSteps {
    pub machine: Machine,
    pub steps: Vec<MeasuredStep>,
    /// Lookups and row updates without a model. The list is empty in older files.
    pub tables: Vec<MeasuredTables>,
}

/// The first line of the file: format version and machine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    rowmill_steps: u32,
    machine: Machine,
}

impl MeasuredSteps {
    /// Serializes the measurements as JSON lines, for [`MeasuredSteps::parse`].
    ///
    /// # Errors
    /// [`Error::Model`] if there are numbers that JSON cannot represent.
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

    /// Parses the JSON lines that [`MeasuredSteps::to_text`] writes.
    ///
    /// # Errors
    /// [`Error::Model`] if the version differs or a line is malformed, [`Error::Rows`] if a time or
    /// rate is not positive.
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
        expected: "numbers that JSON can hold".to_owned(),
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
