//! The folder of a quickstart, with the paths of its files, and the facts about its generated rows.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use data::Dataset;
use data::synthetic::SyntheticReport;

/// Name of the file that marks the folder of a quickstart. If this file exists, the next quickstart
/// may replace the files in the folder.
pub const MARKER: &str = "quickstart.toml";

/// The folder of a quickstart, from which the paths of all its files are derived.
pub struct QuickstartFolder {
    pub root: PathBuf,
}

impl QuickstartFolder {
    /// Path of the generated rows, in the text format of Criteo.
    pub fn text(&self) -> PathBuf {
        self.root.join("train.txt")
    }
    /// Path of the prepared dataset, which is converted from the generated rows.
    pub fn prepared(&self) -> PathBuf {
        self.root.join("prepared")
    }
    /// Path of the run folder, with metrics and checkpoints of the training.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
    /// Path of the folder of traces that the training records.
    pub fn trace(&self) -> PathBuf {
        self.root.join("trace")
    }
    /// Path of the folder of the short runs that try another batch size, with their traces.
    pub fn changes(&self) -> PathBuf {
        self.root.join("changes")
    }
    /// Path of the HTML report on the recorded steps.
    pub fn report(&self) -> PathBuf {
        self.trace().join("report.html")
    }
    /// Path of the configuration. The file marks the folder as a quickstart (see [`MARKER`]).
    pub fn config(&self) -> PathBuf {
        self.root.join(MARKER)
    }
}

/// The generated rows, converted and ready for training.
pub struct GeneratedRows {
    pub report: SyntheticReport,
    pub dataset: Arc<Dataset>,
    pub train: Range<u64>,
    pub held_out: Range<u64>,
    /// AUC of the true probabilities on the held-out rows, which no model can exceed.
    pub ceiling_auc: f64,
}
