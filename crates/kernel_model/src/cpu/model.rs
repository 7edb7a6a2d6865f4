//! A model of a CPU: what its kinds of operations take; stored as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kind::{CpuPrice, KindModel};
use super::measured::Machine;
use super::work::CpuWork;
use crate::Error;

/// Version of the file.
pub const MODEL_VERSION: u32 = 3;

/// Amounts of lookups and row updates that a step may add to what they take alone: what ran before
/// left other things in the cores, and threads to wake up.
const IN_STEPS: [&str; 6] = [
    "call",
    "tables",
    "ids",
    "bytes_past_private",
    "gradient_past_private",
    "row_bytes_past_private",
];

/// DeviceResidual times of a CPU's operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// [`MODEL_VERSION`].
    pub(super) rowmill_cpu: u32,
    pub machine: Machine,
    /// Median read bandwidth of all threads while steps were measured, GB/s.
    pub stream_gb_per_s: f64,
    /// Steps learnt from, and all that were measured.
    pub steps: [usize; 2],
    /// Between two operations, ns.
    pub(super) between_ns: f64,
    pub(super) kinds: BTreeMap<String, KindModel>,
}

impl CpuModel {
    /// The time of a work within a step; `None` for a kind that was not measured.
    #[must_use]
    pub fn price(&self, work: &CpuWork) -> Option<CpuPrice> {
        let kind = self.kinds.get(&work.kind)?;
        Some(kind.price(&self.within_step(work.clone())))
    }

    /// The time of lookups or row updates without a model around them; `None` where none were
    /// measured.
    #[must_use]
    pub fn price_alone(&self, work: &CpuWork) -> Option<CpuPrice> {
        self.kinds.get(&Self::alone(&work.kind)).map(|kind| kind.price(work))
    }

    /// The kind of an operation that was measured without a model.
    pub(super) fn alone(kind: &str) -> String {
        format!("{kind} alone")
    }

    /// A step's work with, for one that was measured without a model, the time that it takes there
    /// among its amounts: what is left to learn is what the rest of the step adds.
    pub(super) fn within_step(&self, mut work: CpuWork) -> CpuWork {
        if let Some(alone) = self.price_alone(&work) {
            work.amounts.retain(|(name, _)| IN_STEPS.contains(name));
            work.amounts.push(("alone_ns", alone.mean_ns));
        }
        work
    }

    /// Between two operations, ns.
    #[must_use]
    pub fn between_ns(&self) -> f64 {
        self.between_ns
    }

    /// As JSON; [`CpuModel::parse`] gives it back.
    ///
    /// # Errors
    /// [`Error::Model`] for numbers that JSON cannot hold.
    pub fn to_text(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::Model {
            expected: "numbers that JSON holds".to_owned(),
            got: error.to_string(),
        })
    }

    /// Reads the text.
    ///
    /// # Errors
    /// [`Error::Model`] for what is no model of this version.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let expected = format!("a CPU's model of rowmill predict learn, version {MODEL_VERSION}");
        let wrong = |got: String| Error::Model { expected: expected.clone(), got };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let version = value.get("rowmill_cpu").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(MODEL_VERSION)) {
            let got = version.map_or("no version".to_owned(), |version| {
                format!(
                    "version {version}; `rowmill predict learn FOLDER --output NEW` learns this \
                     version from the measurements of that one"
                )
            });
            return Err(wrong(got));
        }
        let model: Self =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        match model.kinds.iter().find(|(_, kind)| !kind.is_valid()) {
            Some((name, _)) => Err(wrong(format!("units of {name} that are no times"))),
            None => Ok(model),
        }
    }
}
