//! Prints the results of a quickstart, compared with the best possible AUC, and commands to try
//! next.

use std::path::PathBuf;

use serde::Serialize;
use train::run::RunOutcome;

use super::change::TriedChange;
use super::folder::{GeneratedRows, QuickstartFolder};
use setup::render;
use setup::shell::quoted;

/// The result of a quickstart, in the form in which it is printed.
#[derive(Debug, Serialize)]
pub struct Summary {
    steps: u64,
    samples: u64,
    samples_per_second: f64,
    auc: f64,
    /// AUC of the true probabilities on the held-out rows, which no model can exceed.
    ceiling_auc: f64,
    linear_auc: f64,
    /// Share of the possible improvement over chance that was learned:
    /// `(AUC − 0.5) / (ceiling AUC − 0.5)`.
    share_of_ceiling: f64,
    normalized_entropy: f64,
    held_out_rows: u64,
    #[serde(serialize_with = "render::path_text_or_null")]
    checkpoint: Option<PathBuf>,
    #[serde(serialize_with = "render::path_text")]
    trace: PathBuf,
    /// Path of the HTML report on the recorded steps.
    #[serde(serialize_with = "render::path_text")]
    report: PathBuf,
    /// Path of the HTML page with the curves of the run.
    #[serde(serialize_with = "render::path_text")]
    curves: PathBuf,
    #[serde(serialize_with = "render::path_text")]
    config: PathBuf,
    #[serde(serialize_with = "render::path_text")]
    text: PathBuf,
    #[serde(serialize_with = "render::path_text")]
    run: PathBuf,
    /// The change that was predicted and measured. `None` if the user interrupted it.
    change: Option<TriedChange>,
    seconds: f64,
}

/// Collects the results of a quickstart that was not interrupted.
pub fn summarize(
    rows: &GeneratedRows,
    outcome: &RunOutcome,
    change: Option<TriedChange>,
    curves: PathBuf,
    folder: &QuickstartFolder,
    seconds: f64,
) -> Summary {
    let evaluation = outcome.evaluation.as_ref();
    let auc = evaluation.map_or(f64::NAN, |evaluation| evaluation.auc);
    Summary {
        steps: outcome.step,
        samples: outcome.samples,
        samples_per_second: outcome.samples_per_second,
        auc,
        ceiling_auc: rows.ceiling_auc,
        linear_auc: rows.report.linear_auc,
        share_of_ceiling: (auc - 0.5) / (rows.ceiling_auc - 0.5),
        normalized_entropy: evaluation.map_or(f64::NAN, |e| e.normalized_entropy),
        held_out_rows: rows.held_out.end - rows.held_out.start,
        checkpoint: outcome.checkpoint.clone(),
        trace: folder.trace().join("kineto_rank0.json"),
        report: folder.report(),
        curves,
        config: folder.config(),
        text: folder.text(),
        run: folder.run(),
        change,
        seconds,
    }
}

/// Formats the summary as a table for people.
pub fn table(summary: &Summary) -> String {
    let checkpoint = summary.checkpoint.as_ref().map(|path| path.display().to_string());
    let mut facts = vec![
        ("trained", format!("{} samples", render::count(summary.samples))),
        ("speed", render::rate(summary.samples_per_second)),
        ("AUC on held-out rows", format!("{:.4}", summary.auc)),
        ("best possible AUC", format!("{:.4}", summary.ceiling_auc)),
        ("best linear model's AUC", format!("{:.4}", summary.linear_auc)),
        ("share of the learnable AUC", format!("{:.1} %", 100.0 * summary.share_of_ceiling)),
        ("normalized entropy", format!("{:.4}", summary.normalized_entropy)),
        ("checkpoint", checkpoint.unwrap_or_default()),
        ("trace (open it in ui.perfetto.dev)", summary.trace.display().to_string()),
        ("report of the trace (open it in a browser)", summary.report.display().to_string()),
        ("curves of the run (open them in a browser)", summary.curves.display().to_string()),
    ];
    facts.extend(summary.change.iter().flat_map(TriedChange::lines));
    facts.push(("time", render::duration(summary.seconds)));
    let facts = render::facts(&facts);
    format!("\n{facts}\n")
}

/// Suggests commands for the user to try next.
pub fn next_steps(summary: &Summary) -> String {
    let word = |path: &PathBuf| quoted(&path.display().to_string());
    let (run, config, text) = (word(&summary.run), word(&summary.config), word(&summary.text));
    let (report, trace) = (word(&summary.report), word(&summary.trace));
    let curves = word(&summary.curves);
    let more = summary.steps * 2;
    format!(
        "Next:\n  \
         open {report} in a browser    where the time of the recorded steps went\n  \
         open {curves} in a browser    loss, AUC and speed over the run\n  \
         rowmill predict serve {trace}    edit a recorded step in a browser and predict its time\n  \
         rowmill score {run} {text} | head    click probabilities, one per row\n  \
         rowmill eval {run}    evaluate once more\n  \
         rowmill train {config} --run {run} --resume --set steps={more} --set epochs=100    train longer\n\
         Your own data:\n  \
         rowmill init FILE...    writes a configuration for it; then: rowmill train FILE.toml"
    )
}
