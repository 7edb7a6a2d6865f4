//! The command `rowmill predict evaluate --published`, which compares predictions with training
//! steps whose times vendors published.

use plan::published_steps::{self, FACTOR_MOST, PublishedError, PublishedRow};
use predict::step::Models;
use serde::Serialize;

use setup::Session;
use setup::error::Error;
use setup::render;

/// The published steps beside their predictions, and the typical errors.
#[derive(Serialize)]
struct PublishedReport {
    steps: Vec<PublishedRow>,
    errors: Vec<PublishedError>,
}

/// Runs `rowmill predict evaluate --published` and prints its result.
pub fn run(session: &Session) -> Result<(), Error> {
    let steps = published_steps::evaluate(&Models::shipped()?)?;
    let errors = published_steps::typical_errors(&steps);
    session.console.report(&PublishedReport { steps, errors }, format_report)
}

fn format_report(report: &PublishedReport) -> String {
    let milliseconds = |ns: f64| format!("{:.2}", ns / 1e6);
    let row = |row: &PublishedRow| {
        let ratio = |ns: Option<f64>| {
            ns.map_or_else(String::new, |ns| format!("{:.2}", ns / row.published_ns))
        };
        vec![
            row.source.clone(),
            row.hardware.clone(),
            row.model.to_owned(),
            row.batch_size.to_string(),
            row.precision.to_owned(),
            row.kernels.name().to_owned(),
            row.plan.to_owned(),
            milliseconds(row.predicted_ns),
            format!("{} to {}", milliseconds(row.low_ns), milliseconds(row.high_ns)),
            milliseconds(row.host_ns),
            milliseconds(row.published_ns),
            format!("{:.2}", row.ratio),
            ratio(row.baselines.unchanged_ns),
            ratio(row.baselines.line_ns),
            ratio(row.baselines.trees_ns),
            if row.is_judged { "yes" } else { "no" }.to_owned(),
        ]
    };
    let header = [
        "source",
        "hardware",
        "model",
        "batch",
        "precision",
        "kernels",
        "plan",
        "predicted ms",
        "from–to",
        "host ms",
        "published ms",
        "ratio",
        "unchanged",
        "line",
        "trees",
        "judged",
    ];
    let rows: Vec<Vec<String>> = report.steps.iter().map(row).collect();
    let error = |error: &PublishedError| {
        vec![
            error.precision.to_owned(),
            error.steps.to_string(),
            format!("{:.2} (at most {:.1})", error.typical_factor, error.typical_most),
            format!("{:.2} (at most {FACTOR_MOST:.1})", error.worst_factor),
        ]
    };
    let errors: Vec<Vec<String>> = report.errors.iter().map(error).collect();
    let header_of_errors = ["judged steps", "count", "typical factor", "worst factor"];
    format!(
        "{}\n\nratio: predicted ÷ published; no constant is fitted to these steps. Unchanged, line and \
         trees are ratios of predictions from the other published steps of the model.\nhost ms: PyTorch's operators, by the shipped overheads of the nearest GPU. The \
         prediction is of the device alone, because most of these jobs fuse or capture their \
         operators.\n\nTypical factor: exp(mean |ln(predicted ÷ published)|)\n{}",
        render::grid(&header, &rows),
        render::grid(&header_of_errors, &errors)
    )
}
