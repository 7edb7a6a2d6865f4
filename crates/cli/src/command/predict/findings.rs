//! `rowmill predict findings`: what findings save, by a simulated step.

use analyze::Scope;
use analyze::findings::{Finding, RuleSettings, SavingSource, Severity};
use predict::finding_savings;
use predict::prediction::{self, Draws};
use predict::recording::Span;
use serde::Serialize;

use super::{Priced, priced, recordings, scopes};
use crate::args::PredictNext;
use crate::command::trace::finding;
use crate::error::Error;
use crate::resolve::Session;
use crate::sheet::{self, SheetTarget};

/// A finding with what it saves.
#[derive(Serialize)]
struct Row {
    rule: String,
    severity: Severity,
    /// What the saving was found on.
    source: SavingSource,
    saving_ns: i64,
    saving_pct: f64,
    /// By the graph of the recording.
    recorded_saving_ns: i64,
    title: String,
    key: String,
}

/// Runs the command.
pub fn run(args: &PredictNext, session: &Session) -> Result<(), Error> {
    let traces = recordings(&args.paths, session)?;
    let all = scopes(&traces);
    let asked = (args.calibration.as_ref(), args.recorded);
    let Priced { step, known, spans } = priced(asked, (&traces, &all), session)?;
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
    sheet::put(session.console, rows, SheetTarget::default())
}

/// The findings of a recording that say what they save.
pub fn with_savings(scopes: &[Scope<'_>]) -> Result<Vec<Finding>, Error> {
    let mut findings =
        finding::find(&mut analyze::JobFacts::new(scopes), &RuleSettings::default())?.findings;
    findings.retain(|finding| finding.saving.is_some());
    Ok(findings)
}

/// Whether a row of a rank starts within its span.
pub fn is_inside<'a>(scopes: &'a [Scope<'a>], spans: &'a [Span]) -> impl Fn(u32, u32) -> bool + 'a {
    move |rank, row| {
        let place = scopes.iter().position(|scope| scope.trace.rank == rank);
        place.is_some_and(|at| {
            let start = scopes[at].trace.slices.start(row);
            spans[at].start <= start && start < spans[at].end
        })
    }
}
