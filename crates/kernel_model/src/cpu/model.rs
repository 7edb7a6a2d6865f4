//! The trained model of a CPU, which is stored as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kind::{CpuPrice, KindModel};
use super::measured::Machine;
use super::work::CpuWork;
use crate::Error;

/// Version of the file format of CPU models.
pub const MODEL_VERSION: u32 = 5;

/// Amounts that explain why lookups and row updates take longer within a step than alone: the
/// caches hold other data, and threads must wake up.
const IN_STEPS: [&str; 5] =
    ["call", "tables", "ids", "bytes_past_private", "row_bytes_past_private"];

/// Predicts the time of the trainer's operations on one measured CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    pub(super) rowmill_cpu: u32,
    pub machine: Machine,
    /// Median read bandwidth of all threads while steps were measured, in GB/s.
    pub stream_gb_per_s: f64,
    /// Number of steps used for training, and number of steps measured.
    pub steps: [usize; 2],
    /// Time between two operations, in nanoseconds.
    pub(super) between_ns: f64,
    pub(super) kinds: BTreeMap<String, KindModel>,
}

impl CpuModel {
    /// Predicts the time of an operation within a step. Returns `None` if its kind was not
    /// measured.
    #[must_use]
    pub fn price(&self, work: &CpuWork) -> Option<CpuPrice> {
        let kind = self.kinds.get(&work.kind)?;
        Some(kind.price(&self.within_step(work.clone())))
    }

    /// Predicts the time of lookups or row updates outside a step. Returns `None` if they were not
    /// measured alone.
    #[must_use]
    pub fn price_alone(&self, work: &CpuWork) -> Option<CpuPrice> {
        self.kinds.get(&Self::alone(&work.kind)).map(|kind| kind.price(work))
    }

    /// Returns the name of the kind for operations that were measured outside a step.
    pub(super) fn alone(kind: &str) -> String {
        format!("{kind} alone")
    }

    /// Replaces the amounts of an operation by its predicted time alone, if it was measured alone.
    /// The model of the step then only predicts the extra time within a step.
    pub(super) fn within_step(&self, mut work: CpuWork) -> CpuWork {
        if let Some(alone) = self.price_alone(&work) {
            work.amounts.retain(|(name, _)| IN_STEPS.contains(name));
            work.amounts.push(("alone_ns", alone.mean_ns));
        }
        work
    }

    /// Returns the time between two operations, in nanoseconds.
    #[must_use]
    pub fn between_ns(&self) -> f64 {
        self.between_ns
    }

    /// Serializes the model as JSON, for [`CpuModel::parse`].
    ///
    /// # Errors
    /// [`Error::Model`] if the model contains numbers that JSON cannot represent.
    pub fn to_text(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::Model {
            expected: "numbers that JSON can hold".to_owned(),
            got: error.to_string(),
        })
    }

    /// Parses the JSON that [`CpuModel::to_text`] writes.
    ///
    /// # Errors
    /// [`Error::Model`] if the version differs or the model is invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let expected = format!("a CPU model of rowmill predict learn, version {MODEL_VERSION}");
        let wrong = |got: String| Error::Model { expected: expected.clone(), got };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let version = value.get("rowmill_cpu").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(MODEL_VERSION)) {
            let got = version.map_or("no version".to_owned(), |version| {
                format!(
                    "version {version}; run `rowmill predict learn FOLDER --output NEW` to train a \
                     model of this version from the same measurements"
                )
            });
            return Err(wrong(got));
        }
        let model: Self =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        match model.kinds.iter().find(|(_, kind)| !kind.is_valid()) {
            Some((name, _)) => Err(wrong(format!("invalid unit times or trees for {name}"))),
            None => Ok(model),
        }
    }
}
