//! The folder of a quickstart: the paths of its files, and the rows that it generates.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use data::Dataset;
use data::synthetic::SyntheticReport;

/// The file whose presence allows the next quickstart to replace the files of the folder.
pub const MARKER: &str = "quickstart.toml";

/// The paths of the files of a quickstart.
pub struct QuickstartFolder {
    pub root: PathBuf,
}

impl QuickstartFolder {
    /// Generated rows in the text format of Criteo.
    pub fn text(&self) -> PathBuf {
        self.root.join("train.txt")
    }
    /// The prepared dataset, made from the generated rows.
    pub fn prepared(&self) -> PathBuf {
        self.root.join("prepared")
    }
    /// The run folder with metrics and checkpoints of the training.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
    /// The folder of the traces that the training records.
    pub fn trace(&self) -> PathBuf {
        self.root.join("trace")
    }
    /// The folder of the short runs that try another batch size, with their traces.
    pub fn changes(&self) -> PathBuf {
        self.root.join("changes")
    }
    /// The HTML report of the recorded steps.
    pub fn report(&self) -> PathBuf {
        self.trace().join("report.html")
    }
    /// The configuration. Its presence marks the folder as a quickstart; see [`MARKER`].
    pub fn config(&self) -> PathBuf {
        self.root.join(MARKER)
    }
}

/// The generated rows, ready for training.
pub struct GeneratedRows {
    pub report: SyntheticReport,
    pub dataset: Arc<Dataset>,
    pub train: Range<u64>,
    pub held_out: Range<u64>,
    /// AUC of the true probabilities on the held-out rows.
    pub ceiling_auc: f64,
}
