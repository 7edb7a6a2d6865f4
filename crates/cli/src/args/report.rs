//! `rowmill report` as typed.

use std::path::PathBuf;

use clap::Args;

/// Put a training run on a page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill report runs/first                writes runs/first/report.html
  rowmill report runs/first -o first.html

One file that needs no network: loss, AUC, normalized entropy, calibration, learning rate, samples per
second and input wait over the steps, and the state of each table. It is built from RUN/metrics.jsonl, so
it also works during the run. For traces: rowmill trace report.")]
pub struct ReportArgs {
    /// A run folder
    pub run: PathBuf,
    /// The file to write [default: report.html in the run folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl ReportArgs {
    /// The file to write.
    pub fn target(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.run.join("report.html"))
    }
}
