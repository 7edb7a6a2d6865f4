//! `rowmill trace doctor`: whether a trace can be trusted.

use std::process::ExitCode;

use analyze::cpu_run;
use analyze::job::{JobFacts, RankFacts};
use analyze::quality::{self, Issue, QualityVerdict, Severity};
use analyze::skew::Skew;

use super::query::TraceQuery;
use setup::args::OutputFormat;
use setup::error::{EXIT_BROKEN, EXIT_FAILED, Error, unless_closed};

/// Runs the command; exit code 1 if something makes the figures wrong, 4 if parts of the recording
/// are missing.
pub fn run(look: &TraceQuery<'_>) -> Result<ExitCode, Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    // The verdict is of what every other command looks at; what is wrong at the edges of a
    // recording is told, too.
    let verdict = job.verdict();
    let whole = look.chosen.whole();
    let edges = JobFacts::new(&whole);
    let mut issues = job.issues().to_vec();
    issues.extend(quality::outside(&issues, &edges.ranks));
    issues.sort_by_key(|issue| (issue.severity, issue.id, issue.rank));
    let is_for_people =
        look.session.console.format == OutputFormat::Table && look.target.output.is_none();
    unless_closed(match is_for_people {
        true => {
            let ranks = scopes.len() as u64;
            look.session.console.print(&for_people((&issues, ranks), &clocks(&edges), verdict))
        }
        false => look.put(&issues),
    })?;
    Ok(match verdict {
        QualityVerdict::Broken => ExitCode::from(EXIT_BROKEN),
        QualityVerdict::Poor => ExitCode::from(EXIT_FAILED),
        QualityVerdict::Good | QualityVerdict::Doubtful => ExitCode::SUCCESS,
    })
}

/// What is known of the clocks of the devices, a line for each.
fn clocks(job: &JobFacts<'_>) -> Vec<String> {
    // A pool's clock is its host's.
    let devices = job.ranks.iter().filter(|rank| !cpu_run::is_cpu_run(rank.scope.trace));
    let all = devices.flat_map(RankFacts::skews);
    let line = |skew: &Skew| {
        let rank =
            if job.ranks.len() > 1 { format!("rank {}: ", skew.rank) } else { String::new() };
        format!("clock   {rank}{}", skew.words())
    };
    all.map(line).collect()
}

fn for_people(
    (issues, ranks): (&[Issue], u64),
    clocks: &[String],
    verdict: QualityVerdict,
) -> String {
    let mut parts: Vec<String> = quality::by_kind(issues)
        .iter()
        .map(|kind| {
            let severity = severity(kind.severity);
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

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Broken => "broken ",
        Severity::Error => "error  ",
        Severity::Warning => "warning",
        Severity::Info => "info   ",
    }
}
