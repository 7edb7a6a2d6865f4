//! The command `rowmill trace doctor`, which checks whether a trace can be trusted.

use std::process::ExitCode;

use analyze::cpu_run;
use analyze::job::{JobFacts, RankFacts};
use analyze::quality::{self, Issue, QualityVerdict, Severity};
use analyze::skew::Skew;

use super::query::TraceQuery;
use setup::args::OutputFormat;
use setup::error::{EXIT_BROKEN, EXIT_FAILED, Error, unless_closed};

/// Runs `rowmill trace doctor` and prints its result. The exit code is 1 if a defect makes the
/// figures wrong, and 4 if parts of the recording are missing.
pub fn run(query: &TraceQuery<'_>) -> Result<ExitCode, Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    // The verdict covers the selected window, because all other commands read only that window.
    // Issues outside the window are listed too, but do not change the verdict.
    let verdict = job.verdict();
    let whole = query.chosen.whole();
    let edges = JobFacts::new(&whole);
    let mut issues = job.issues().to_vec();
    issues.extend(quality::outside(&issues, &edges.ranks));
    issues.sort_by_key(|issue| (issue.severity, issue.id, issue.rank));
    let is_for_people =
        query.session.console.format == OutputFormat::Table && query.target.output.is_none();
    unless_closed(match is_for_people {
        true => {
            let ranks = scopes.len() as u64;
            let clocks = clock_lines(&edges);
            query.session.console.print(&issue_text(&issues, ranks, &clocks, verdict))
        }
        false => query.put(&issues),
    })?;
    Ok(match verdict {
        QualityVerdict::Broken => ExitCode::from(EXIT_BROKEN),
        QualityVerdict::Poor => ExitCode::from(EXIT_FAILED),
        QualityVerdict::Good | QualityVerdict::Doubtful => ExitCode::SUCCESS,
    })
}

/// Describes the clock skew of each device in one line.
fn clock_lines(job: &JobFacts<'_>) -> Vec<String> {
    // A CPU thread pool uses the clock of its host, so it has no skew.
    let devices = job.ranks.iter().filter(|rank| !cpu_run::is_cpu_run(rank.scope.trace));
    let all = devices.flat_map(RankFacts::skews);
    let line = |skew: &Skew| {
        let rank =
            if job.ranks.len() > 1 { format!("rank {}: ", skew.rank) } else { String::new() };
        format!("clock   {rank}{}", skew.words())
    };
    all.map(line).collect()
}

/// Formats the issues, the clock skews and the verdict as text for people.
fn issue_text(issues: &[Issue], ranks: u64, clocks: &[String], verdict: QualityVerdict) -> String {
    let mut parts: Vec<String> = quality::by_kind(issues)
        .iter()
        .map(|kind| {
            let severity = severity_word(kind.severity);
            format!(
                "{severity} {}: {}\n        matters to: {}\n        hint: {}",
                kind.id,
                kind.words(ranks),
                kind.matters,
                kind.hint
            )
        })
        .collect();
    parts.extend_from_slice(clocks);
    parts.push(format!("quality of the trace: {}", verdict.words()));
    parts.join("\n")
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Broken => "broken ",
        Severity::Error => "error  ",
        Severity::Warning => "warning",
        Severity::Info => "info   ",
    }
}
