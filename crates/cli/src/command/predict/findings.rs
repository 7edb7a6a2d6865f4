//! `rowmill predict findings`: what findings save, by a simulated step.

use analyze::findings::{SavingSource, Severity};
use predict::finding_savings;
use predict::prediction::{self, Draws};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{Priced, price_recorded_step};
use crate::args::PredictNext;
use setup::Session;
use setup::error::Error;
use setup::findings::{is_inside, with_savings};
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::table_output::{self, TableTarget};

/// A finding with what it saves.
#[derive(Serialize, TableRow)]
struct Row {
    rule: String,
    severity: Severity,
    /// What the saving was found on.
    source: SavingSource,
    saving_ns: i64,
    saving_pct: f64,
    /// The saving by the dependency graph of the recording.
    recorded_saving_ns: i64,
    title: String,
    key: String,
}

/// Runs `rowmill predict findings` and prints its result.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let all = whole_scopes(&traces);
    let asked = (args.calibration.as_ref(), args.recorded);
    let Priced { step, known, spans } = price_recorded_step(asked, (&traces, &all), session)?;
    let predicted = prediction::predict_step(&step, &known, Draws { count: 0, seed: 0 })?;
    let mut findings = with_savings(&all)?;
    let recorded: Vec<(String, i64)> = findings
        .iter()
        .filter_map(|finding| Some((finding.key.clone(), finding.saving?.mid_ns)))
        .collect();
    let repriced = finding_savings::reprice_findings(
        &step,
        &predicted.simulation,
        is_inside(&all, &spans),
        &mut findings,
    );
    session.console.say(format_args!(
        "{repriced} of {} findings by a simulation of step {}, the others by the recording",
        findings.len(),
        args.recorded.step
    ));
    let rows: Vec<Row> = findings
        .into_iter()
        .filter_map(|finding| {
            let saving = finding.saving?;
            let of_key = recorded.iter().find(|(key, _)| *key == finding.key);
            Some(Row {
                rule: finding.rule,
                severity: finding.severity,
                source: saving.source,
                saving_ns: saving.mid_ns,
                saving_pct: saving.mid_pct,
                recorded_saving_ns: of_key.map_or(0, |(_, ns)| *ns),
                title: finding.title,
                key: finding.key,
            })
        })
        .collect();
    let shown = if args.top == 0 { rows.len() } else { args.top.min(rows.len()) };
    let rows = &rows[..shown];
    table_output::write_rows(session.console, rows, TableTarget::default())
}
