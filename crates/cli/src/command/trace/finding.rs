//! The command `rowmill trace findings`, which lists causes of wasted time, the time that a step
//! would gain, and remedies.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use analyze::findings::{
    self, Confidence, Evidence, Finding, FindingReport, HeldBack, RuleSettings, Severity,
};
use analyze::job::JobFacts;
use analyze::kernels::short_name;
use predict::finding_edits::edits_of_finding;
use schema::TableRow;
use serde::Serialize;

use super::query::TraceQuery;
use crate::args::FailOn;
use crate::finding_text::{heading, severity_word, wrap_indented};
use setup::args::OutputFormat;
use setup::error::{EXIT_BROKEN, EXIT_FOUND, Error, UsageError, unless_closed};
use setup::findings::find_findings;
use setup::render;
use setup::table_output;

mod sarif;

/// Runs `rowmill trace findings` and prints its result. If `fail_on` is set, the exit code is 4 if
/// parts of the recording are missing. For a complete recording, the exit code is 3 if a finding is
/// at least as severe as `fail_on`.
pub(super) fn run(
    query: &TraceQuery<'_>,
    rules: Option<&Path>,
    fail_on: Option<FailOn>,
    write_edit: Option<&str>,
) -> Result<ExitCode, Error> {
    let settings = read_settings(rules)?;
    let started = Instant::now();
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let report = find_findings(&job, &settings)?;
    query.session.console.detail(format_args!(
        "{} rules took {}, reading not included",
        findings::rules().count() + settings.custom.len(),
        render::nanos(started.elapsed().as_nanos() as f64)
    ));
    if let Some(rule) = write_edit {
        unless_closed(write_edits(query, rule, &report, &job))?;
        return Ok(ExitCode::SUCCESS);
    }
    unless_closed(print_report(query, &report))?;
    let worst = report.findings.iter().map(|finding| finding.severity).min();
    let limit = fail_on.map(|limit| match limit {
        FailOn::Critical => Severity::Critical,
        FailOn::High => Severity::High,
        FailOn::Medium => Severity::Medium,
        FailOn::Info => Severity::Info,
    });
    let is_over = worst.zip(limit).is_some_and(|(worst, limit)| worst <= limit);
    // A severe finding may be hidden in the missing parts, so neither exit code 0 nor 3 would be
    // right.
    let is_broken = limit.is_some() && query.chosen.missing.is_some();
    Ok(match (is_broken, is_over) {
        (true, _) => ExitCode::from(EXIT_BROKEN),
        (false, true) => ExitCode::from(EXIT_FOUND),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Writes the edits that do what the remedies of a rule's findings do.
fn write_edits(
    query: &TraceQuery<'_>,
    rule: &str,
    report: &FindingReport,
    job: &JobFacts<'_>,
) -> Result<(), Error> {
    let named = report.findings.iter().filter(|finding| finding.rule.eq_ignore_ascii_case(rule));
    let no_edit = |reason: String| UsageError::NoEdit { rule: rule.to_owned(), reason };
    let mut text = String::new();
    for finding in named {
        let edits = edits_of_finding(finding, job).map_err(no_edit)?;
        text += &format!("# {} {}: {}\n", finding.rule, finding.title, finding.advice);
        text += &toml::to_string(&edits).map_err(|error| no_edit(error.to_string()))?;
    }
    if text.is_empty() {
        let found: BTreeSet<&str> = report.findings.iter().map(|one| one.rule.as_str()).collect();
        let got = found.into_iter().collect::<Vec<_>>().join(", ");
        return Err(UsageError::NoFinding { rule: rule.to_owned(), got }.into());
    }
    if let Some(output) = query.target.output {
        crate::trace_files::refuse_input(&query.chosen.job, output)?;
    }
    table_output::deliver(query.target.output, |out| {
        out.write_all(text.as_bytes()).map_err(Error::output)
    })
}

fn read_settings(path: Option<&Path>) -> Result<RuleSettings, Error> {
    let Some(path) = path else { return Ok(RuleSettings::default()) };
    let text = fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let settings = toml::from_str(&text);
    Ok(settings.map_err(|error: toml::de::Error| UsageError::RulesFile {
        path: path.to_owned(),
        reason: error.to_string().trim_end().replace('\n', "\n  "),
    })?)
}

fn print_report(query: &TraceQuery<'_>, report: &FindingReport) -> Result<(), Error> {
    let console = query.session.console;
    let output = query.target.output;
    if let Some(output) = output {
        crate::trace_files::refuse_input(&query.chosen.job, output)?;
    }
    let text = match console.format {
        OutputFormat::Csv | OutputFormat::Parquet => return query.put(&finding_rows(report)),
        OutputFormat::Json => serde_json::to_string(&query.with_cut_notice(report))?,
        OutputFormat::Sarif => sarif::sarif_text(report, &query.chosen.job)?,
        OutputFormat::Md => markdown_table(report),
        OutputFormat::Table => findings_text(report, query.target.top.unwrap_or(usize::MAX)),
    };
    table_output::deliver(output, |out| writeln!(out, "{text}").map_err(Error::output))
}

/// A finding as a row of a CSV or Parquet table.
#[derive(Serialize, TableRow)]
pub struct FindingRow<'a> {
    rule: &'a str,
    title: &'a str,
    severity: Severity,
    confidence: Confidence,
    held_back: Option<HeldBack>,
    ranks: String,
    saving_low_ns: Option<i64>,
    saving_ns: Option<i64>,
    saving_high_ns: Option<i64>,
    saving_pct: Option<f64>,
    what: &'a str,
    advice: &'a str,
    key: &'a str,
}

fn finding_rows(report: &FindingReport) -> Vec<FindingRow<'_>> {
    let row = |finding: &'_ Finding| {
        let ranks: Vec<String> = finding.ranks.iter().map(u32::to_string).collect();
        ranks.join(" ")
    };
    report
        .findings
        .iter()
        .map(|finding| FindingRow {
            rule: &finding.rule,
            title: &finding.title,
            severity: finding.severity,
            confidence: finding.confidence,
            held_back: finding.held_back,
            ranks: row(finding),
            saving_low_ns: finding.saving.map(|saving| saving.low_ns),
            saving_ns: finding.saving.map(|saving| saving.mid_ns),
            saving_high_ns: finding.saving.map(|saving| saving.high_ns),
            saving_pct: finding.saving.map(|saving| saving.mid_pct),
            what: &finding.what,
            advice: &finding.advice,
            key: &finding.key,
        })
        .collect()
}

/// Formats the first `top` findings as text for people.
fn findings_text(report: &FindingReport, top: usize) -> String {
    let mut parts: Vec<String> = report.findings.iter().take(top).map(paragraph).collect();
    if parts.is_empty() {
        parts.push("nothing was found".to_owned());
    }
    let hidden = report.findings.len().saturating_sub(top);
    if hidden > 0 {
        parts.push(format!("{hidden} more findings are hidden by --top"));
    }
    parts.push(footer(report));
    parts.join("\n\n")
}

fn paragraph(finding: &Finding) -> String {
    let mut lines = vec![heading(finding)];
    lines.extend(wrap_indented(&finding.what));
    lines.extend(wrap_indented(&format!("→ {}", finding.advice)));
    let place = finding.evidence.first().and_then(describe_place);
    lines.extend(place.iter().flat_map(|place| wrap_indented(place)));
    lines.join("\n")
}

/// Describes where the evidence is on the timeline, with the line of Python if it is known.
fn describe_place(evidence: &Evidence) -> Option<String> {
    let start = render::nanos(evidence.start_ns? as f64);
    let source = evidence.source.as_ref().map_or_else(String::new, |line| format!(", {line}"));
    let path = evidence.within.iter().map(String::as_str).chain([short_name(&evidence.name)]);
    let path = path.collect::<Vec<_>>().join(" › ");
    Some(format!("at +{start} on rank {}: {path}{source}", evidence.rank))
}

fn footer(report: &FindingReport) -> String {
    let step = render::nanos(report.step_ns as f64);
    let found = &report.findings;
    let has_steps = found.is_empty() || found.iter().any(|finding| !finding.steps.is_empty());
    let (steps, each) = match report.step_count {
        _ if !has_steps => (format!("a window of {step} without steps (slowest rank)"), ""),
        1 => (format!("one step of {step} (mean of the slowest rank)"), " per step"),
        count => (format!("{count} steps of {step} (mean of the slowest rank)"), " per step"),
    };
    let count = render::counted(report.findings.len() as u64, "finding");
    let mut lines = vec![format!("{count} in {steps}")];
    if let Some(joint) = report.joint_saving_ns {
        let joint = render::nanos(joint as f64);
        lines.push(format!("savings do not add up: all remedies together save {joint}{each}"));
    }
    if !report.suppressed.is_empty() {
        lines.push(format!("{} known findings are suppressed", report.suppressed.len()));
    }
    lines.push("rowmill explain RULE describes how a rule works and what to change".to_owned());
    lines.join("\n")
}

fn markdown_table(report: &FindingReport) -> String {
    let mut lines = vec![
        "| severity | rule | finding | saves per step | % |".to_owned(),
        "| --- | --- | --- | --: | --: |".to_owned(),
    ];
    // Names of kernels can contain any characters, such as the `<` of C++ templates, so they are
    // escaped.
    let plain = |text: &str| text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ");
    for finding in &report.findings {
        let saving = finding.saving;
        let gain = saving.map_or(("-".to_owned(), "-".to_owned()), |one| {
            let text = match one.is_within_noise() {
                true => "nothing certain".to_owned(),
                false => render::nanos(one.mid_ns as f64),
            };
            (text, format!("{:.1}", one.mid_pct))
        });
        let (nanos, share) = gain;
        let held = finding.held_back;
        let held = held.map_or_else(String::new, |why| format!(" (held back: {})", why.words()));
        lines.push(format!(
            "| {} | {} | **{}{held}.** {} {} | {nanos} | {share} |",
            severity_word(finding.severity).trim(),
            finding.rule,
            plain(&finding.title),
            plain(&finding.what),
            plain(&finding.advice)
        ));
    }
    lines.push(String::new());
    lines.extend(footer(report).lines().map(|line| format!("{line}  ")));
    lines.join("\n")
}
