//! Formats findings as text: the heading of a finding, and the list of findings at the end of a
//! job's summary.

use analyze::findings::{Confidence, Finding, FindingCategory, FindingReport, Severity};
use setup::render;

/// Largest number of characters in a line.
const WIDTH: usize = 96;

/// Formats the heading of a finding in one line: severity, rule, title, saving and confidence.
pub fn heading(finding: &Finding) -> String {
    let severity = severity_word(finding.severity);
    let saving = finding.saving.map_or_else(String::new, |saving| {
        let nanos = |ns: i64| render::nanos(ns as f64);
        // The middle estimate is zero if the wasted time is not on the critical path.
        if saving.mid_ns == 0 {
            return format!(" · not on the critical path ({} at most)", nanos(saving.high_ns));
        }
        if saving.is_within_noise() {
            return format!(
                " · no certain gain: steps differ by more than the {} at stake ({:.1} %)",
                nanos(saving.mid_ns),
                saving.mid_pct
            );
        }
        format!(
            " · saves {} {} ({:.1} %; {} to {})",
            nanos(saving.mid_ns),
            if finding.steps.is_empty() { "in the window" } else { "per step" },
            saving.mid_pct,
            nanos(saving.low_ns),
            nanos(saving.high_ns)
        )
    });
    let held = finding.held_back;
    let held = held.map_or_else(String::new, |why| format!(" · held back: {}", why.words()));
    let confidence = match finding.confidence {
        Confidence::High => "",
        Confidence::Medium => " · likely",
        Confidence::Low => " · perhaps",
    };
    format!("{severity} {} {}{saving}{confidence}{held}", finding.rule, finding.title)
}

/// Returns the severity as a word, padded to eight characters so that headings align.
pub fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::High => "high    ",
        Severity::Medium => "medium  ",
        Severity::Info => "info    ",
    }
}

/// Formats the most severe findings for the end of a summary. Findings about the quality of the
/// trace are left out, because the summary reports the quality itself.
pub fn top_findings(report: &FindingReport, count: usize) -> String {
    let is_gain = |finding: &&Finding| {
        finding.category != FindingCategory::Quality && finding.severity != Severity::Info
    };
    let found: Vec<&Finding> = report.findings.iter().filter(is_gain).take(count).collect();
    if found.is_empty() {
        return "findings: nothing that would shorten a step by 1 %".to_owned();
    }
    let mut lines = vec![match count {
        1 => "top finding".to_owned(),
        _ => {
            "top findings (savings are in the longest step; all: rowmill trace findings)".to_owned()
        }
    }];
    for finding in found {
        lines.push(format!("  {}", heading(finding)));
        lines.extend(wrap_indented(&finding.what));
    }
    lines.join("\n")
}

/// Wraps a text into lines that are indented.
pub fn wrap_indented(text: &str) -> Vec<String> {
    let mut lines = vec![String::from("   ")];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let is_full = lines[last].chars().count() + 1 + word.chars().count() > WIDTH;
        if is_full && lines[last].trim() != "" {
            lines.push(format!("    {word}"));
        } else {
            lines[last] += " ";
            lines[last] += word;
        }
    }
    lines
}
