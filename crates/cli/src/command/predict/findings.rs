//! The command `rowmill predict next --by finding`, which ranks findings by the time that they save
//! in a simulated step.

use analyze::findings::{SavingSource, Severity};
use predict::finding_savings;
use predict::prediction::{self, Draws};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{CalibratedStep, read_step};
use crate::args::PredictNext;
use setup::Session;
use setup::error::Error;
use setup::findings::{is_inside, with_savings};
use setup::recorded_steps::{open_recordings, whole_scopes};
use setup::table_output::{self, TableTarget};

/// A finding, with the time that it saves by simulation and by the recording.
#[derive(Serialize, TableRow)]
struct FindingRow {
    rule: String,
    severity: Severity,
    source: SavingSource,
    saving_ns: i64,
    saving_pct: f64,
    /// Nanoseconds saved, as computed from the dependency graph of the recording.
    recorded_saving_ns: i64,
    title: String,
    key: String,
}

/// Runs `rowmill predict next --by finding` and prints its result.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let calibrated =
        read_step(args.calibration.as_deref(), args.selection, &traces, &scopes, session)?;
    let CalibratedStep { step, calibration, steps } = &calibrated;
    // The savings need only the simulated step, so no random draws are made.
    let predicted = prediction::predict_step(step, calibration, Draws::new(0, 0))?;
    calibrated.check_base(&predicted.simulation, session);
    let mut findings = with_savings(&scopes)?;
    // Repricing overwrites the savings, so the recorded savings are kept for the output.
    let recorded: Vec<(String, i64)> = findings
        .iter()
        .filter_map(|finding| Some((finding.key.clone(), finding.saving?.mid_ns)))
        .collect();
    let repriced = finding_savings::reprice_findings(
        step,
        &predicted.simulation,
        is_inside(&scopes, &steps.spans_of_step(args.selection.step)),
        &mut findings,
    );
    session.console.say(format_args!(
        "{repriced} of {} findings by a simulation of step {}, the others by the recording",
        findings.len(),
        args.selection.step
    ));
    let rows: Vec<FindingRow> = findings
        .into_iter()
        .filter_map(|finding| {
            let saving = finding.saving?;
            let of_key = recorded.iter().find(|(key, _)| *key == finding.key);
            Some(FindingRow {
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
