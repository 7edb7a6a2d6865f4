//! The command line of `rowmill report`.

use std::path::PathBuf;

use clap::Args;

/// Options of `rowmill report`, which plots a training run on an HTML page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill report runs/first                writes runs/first/report.html
  rowmill report runs/first -o first.html

The page is one file that needs no network. It shows loss, AUC, normalized entropy, calibration, learning
rate, samples per second and input wait over the steps, and the state of each table. It is built from
RUN/metrics.jsonl, so it can be made while the run is still training. For traces: rowmill trace report.")]
pub struct ReportArgs {
    /// A run folder
    pub run: PathBuf,
    /// The file to write [default: report.html in the run folder]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl ReportArgs {
    /// The file to write, which is the value of `--output`, or else `report.html` in the run
    /// folder.
    pub fn target(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.run.join("report.html"))
    }
}
