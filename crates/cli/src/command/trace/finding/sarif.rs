//! Formats findings as SARIF 2.1.0, which code hosts show beside changes. The module does not
//! depend on the rules.

use analyze::findings::{self, Finding, FindingReport, Severity};
use serde_json::{Value, json};
use trace::store::Job;

use setup::error::Error;

/// Formats the findings of a job as a SARIF document.
pub fn sarif_text(report: &FindingReport, job: &Job) -> Result<String, Error> {
    let own =
        report.findings.iter().filter(|one| !is_built_in(&one.rule)).map(
            |finding| json!({"id": finding.rule, "shortDescription": {"text": finding.title}}),
        );
    let rules: Vec<Value> = findings::rules()
        .map(|rule| {
            json!({
                "id": rule.id,
                "name": rule.title,
                "shortDescription": {"text": rule.title},
                "help": {"text": rule.page, "markdown": rule.page},
            })
        })
        .chain(own)
        .collect();
    let results: Vec<Value> = report.findings.iter().map(|one| result(one, job)).collect();
    let driver = json!({
        "name": "rowmill",
        "version": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    let document = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    });
    serde_json::to_string(&document).map_err(Error::from)
}

fn is_built_in(rule: &str) -> bool {
    findings::rules().any(|known| known.id == rule)
}

fn result(finding: &Finding, job: &Job) -> Value {
    let level = match finding.severity {
        Severity::Critical | Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Info => "note",
    };
    // A finding without ranks concerns the whole job, so all traces are its locations.
    let is_its = |rank: &u32| finding.ranks.is_empty() || finding.ranks.contains(rank);
    let locations: Vec<Value> = job
        .traces
        .iter()
        .filter(|trace| is_its(&trace.rank))
        .map(|trace| {
            let uri = trace.origin.path.display().to_string();
            json!({"physicalLocation": {"artifactLocation": {"uri": uri}}})
        })
        .collect();
    // Code hosts recognize a finding of an earlier run by the fingerprint, so it is the finding's
    // key.
    json!({
        "ruleId": finding.rule,
        "level": level,
        "message": {"text": format!("{} {}", finding.what, finding.advice)},
        "locations": locations,
        "partialFingerprints": {"rowmill/key": finding.key},
        "properties": {
            "severity": finding.severity,
            "confidence": finding.confidence,
            "heldBack": finding.held_back,
            "bound": finding.limiting_factor,
            "saving": finding.saving,
            "ranks": finding.ranks,
        },
    })
}
