//! What the traces of an order say, as its file stores it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Name of the file with the result in the folder of an order.
pub const ANALYSIS_FILE: &str = "analysis.json";
/// Name of the HTML report in the folder of an order.
pub const REPORT_FILE: &str = "report.html";

/// What the traces of an order say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceAnalysis {
    /// The reason if the traces could not be analyzed.
    pub error: String,
    pub has_report: bool,
    /// Mean step time of the slowest rank in nanoseconds.
    pub step_ns: i64,
    /// Time that a step would save with all remedies together.
    pub joint_saving_ns: Option<i64>,
    pub findings: Vec<TraceFinding>,
}

/// A finding of `rowmill trace findings`. Other members are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceFinding {
    pub rule: String,
    pub title: String,
    pub category: String,
    pub severity: String,
    pub what: String,
    pub advice: String,
    pub key: String,
    pub saving: Option<StepSaving>,
}

/// The time that a step would save, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepSaving {
    pub low_ns: i64,
    pub mid_ns: i64,
    pub high_ns: i64,
}

impl TraceAnalysis {
    /// Reads the result from the folder of an order. Returns `None` if there is none.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(ANALYSIS_FILE)).ok()?).ok()
    }

    /// Returns the time that a step would save with all remedies together. If it is unknown, the
    /// largest saving of one remedy is less than it.
    pub fn joint_ns(&self) -> i64 {
        let single = self.findings.iter().filter_map(|finding| finding.saving);
        let most = single.map(|saving| saving.mid_ns).max();
        self.joint_saving_ns.or(most).unwrap_or(0)
    }

    /// Returns the share of the step time that a time is, between 0 and 1.
    pub fn share(&self, saving_ns: i64) -> f64 {
        if self.step_ns <= 0 {
            0.0
        } else {
            (saving_ns as f64 / self.step_ns as f64).clamp(0.0, 1.0)
        }
    }
}
