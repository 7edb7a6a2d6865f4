//! `rowmill trace doctor`: whether a trace can be trusted.

use std::process::ExitCode;

use analyze::Scope;
use analyze::quality::{self, Issue, Known, Severity, Verdict};
use analyze::skew::Skew;
use analyze::{pool, pressure};

use super::Look;
use crate::args::Format;
use crate::error::{EXIT_BROKEN, EXIT_FAILED, Error, unless_closed};

/// Runs the command; exit code 1 if something makes the figures wrong, 4 if parts of the recording
/// are missing.
pub fn run(look: &Look<'_>) -> Result<ExitCode, Error> {
    let scopes = look.chosen.scopes();
    let known = Known::of(&scopes);
    let issues = quality::of(&known.evidence(&scopes));
    let verdict = quality::verdict(&issues);
    let is_for_people =
        look.session.console.format == Format::Table && look.target.output.is_none();
    unless_closed(match is_for_people {
        true => look.session.console.print(&for_people(&issues, &clocks(&scopes), verdict)),
        false => look.put(&issues),
    })?;
    Ok(match verdict {
        Verdict::Broken => ExitCode::from(EXIT_BROKEN),
        Verdict::Poor => ExitCode::from(EXIT_FAILED),
        Verdict::Good | Verdict::Doubtful => ExitCode::SUCCESS,
    })
}

/// What is known of the clocks of the devices, a line for each.
fn clocks(scopes: &[Scope<'_>]) -> Vec<String> {
    // A pool's clock is its host's.
    let devices = scopes.iter().filter(|scope| !pool::is_pool(scope.trace));
    let all = devices.flat_map(|scope| pressure::with_clocks(scope).0);
    let line = |skew: Skew| {
        let rank = if scopes.len() > 1 { format!("rank {}: ", skew.rank) } else { String::new() };
        format!("clock   {rank}{}", skew.words())
    };
    all.map(line).collect()
}

fn for_people(issues: &[Issue], clocks: &[String], verdict: Verdict) -> String {
    let mut parts: Vec<String> = quality::by_kind(issues)
        .iter()
        .map(|kind| {
            let severity = severity(kind.severity);
            let ranks = match kind.rank_count {
                0 | 1 => String::new(),
                count => format!(" ({count} ranks)"),
            };
            format!(
                "{severity} {}{ranks}: {}\n        matters to: {}\n        hint: {}",
                kind.id, kind.what, kind.matters, kind.hint
            )
        })
        .collect();
    parts.extend_from_slice(clocks);
    parts.push(match verdict {
        Verdict::Good => "verdict: good; its figures can be trusted".to_owned(),
        Verdict::Doubtful => "verdict: doubtful; figures named above may mislead".to_owned(),
        Verdict::Poor => "verdict: poor; figures named above are wrong".to_owned(),
        Verdict::Broken => "verdict: broken; parts of the recording are missing".to_owned(),
    });
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
