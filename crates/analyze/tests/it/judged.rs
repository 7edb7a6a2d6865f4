//! Checks that every finding above *info* on the public traces has a verdict in
//! `testdata/public_findings/README.md`.
//!
//! After a change of a rule, write the findings again and judge those that have changed:
//! `ROWMILL_JUDGED=write cargo test --release -p analyze --test it judged`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::findings::{Finding, RuleSettings, Severity};
use analyze::{Classifier, Scope, WindowRule};

use crate::findings::report;
use crate::fixture;

/// All traces below `traces`, which are single files and folders that are read as one job.
const TRACES: [&str; 29] = [
    "alexnet",
    "dlrm8/dlrm_kineto.tar.gz",
    "linear/linear_kineto.json.gz",
    "modern",
    "modern/a100_full_queue.json.gz",
    "modern/h100_timesformer.json.gz",
    "modern/mi300_owlv2.json.gz",
    "modern/mi300_resnet_act_checkpoint.json.gz",
    "modern/mtia_inference.json.gz",
    "modern/resnet50_2021_workers0.json.gz",
    "modern/resnet50_2021_workers4.json.gz",
    "modern/sglang_decode.json.gz",
    "modern/sglang_decode_capture.json.gz",
    "modern/sglang_prefill_decode.json.gz",
    "nccl",
    "odd",
    "odd/backward_thread.json",
    "odd/event_sync_multi_stream.json.gz",
    "odd/event_sync_trace.json.gz",
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "odd/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "odd/rank_non_gpu.json.gz",
    "odd/triton_example.json.gz",
    "simple_add",
    "timeline_sampled",
    "trace_diff",
    "trace_diff/control.json.gz",
    "trace_diff/test.json.gz",
    "dlrm8",
];

/// Number of columns that a person or `bench/compare/findings_truth.py` fills: the recomputed
/// value, the verdict and the reason.
const JUDGED: usize = 3;
/// Number of columns that describe a finding.
const FOUND: usize = 9;
const COLUMNS: usize = FOUND + JUDGED;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/public_findings/README.md")
}

/// Returns the cells of a line of the table that describes a finding, or `None` for another line.
fn columns(line: &str) -> Option<Vec<String>> {
    let inside = line.strip_prefix("| `")?.strip_suffix(" |")?;
    let inside = format!("`{inside}");
    Some(inside.split(" | ").map(str::to_owned).collect())
}

/// Returns a text in the form in which it stands in a cell of the table.
fn cell(text: &str) -> String {
    text.replace('|', "¦")
}

fn row(trace: &str, finding: &Finding) -> Vec<String> {
    let saving = finding.saving.map_or_else(String::new, |saving| {
        format!(
            "{}/{}/{} ns ({:.1} %)",
            saving.low_ns, saving.mid_ns, saving.high_ns, saving.mid_pct
        )
    });
    let steps = match finding.steps.as_slice() {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}..{last}"),
    };
    let figures: Vec<String> =
        finding.numbers.iter().map(|number| format!("{}={}", number.name, number.value)).collect();
    let named = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let cells = [
        format!("`{trace}`"),
        finding.rule.clone(),
        format!("`{}`", finding.key),
        named(&finding.severity),
        named(&finding.confidence),
        steps,
        saving,
        finding.what.clone(),
        figures.join("; "),
    ];
    cells.iter().map(|text| cell(text)).collect()
}

fn found() -> Option<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for name in TRACES {
        let job = fixture::job(name)?;
        let classifier = Classifier::new(ClassRule::Category);
        let scope = |trace| Scope::new(trace, WindowRule::Steps, &classifier);
        let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
        let report = report(&job, &scopes, &RuleSettings::default());
        let told = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
        rows.extend(told.map(|finding| row(name, finding)));
    }
    Some(rows)
}

/// Returns the page with the rows of the current findings. A row that has not changed keeps its
/// verdict.
fn written(page: &str, found: &[Vec<String>]) -> String {
    let known: BTreeMap<Vec<String>, Vec<String>> = page
        .lines()
        .filter_map(columns)
        .filter(|cells| cells.len() == COLUMNS)
        .map(|cells| (cells[..FOUND].to_vec(), cells[FOUND..].to_vec()))
        .collect();
    let line = |cells: &Vec<String>| {
        let new = || vec!["".to_owned(), "to judge".to_owned(), "".to_owned()];
        let said = known.get(cells).cloned().unwrap_or_else(new);
        let all: Vec<&str> = cells.iter().chain(&said).map(String::as_str).collect();
        format!("| {} |", all.join(" | "))
    };
    let mut lines: Vec<String> = Vec::new();
    let mut is_behind = false;
    for text in page.lines() {
        match columns(text) {
            Some(_) if is_behind => {}
            Some(_) => {
                lines.extend(found.iter().map(line));
                is_behind = true;
            }
            None => lines.push(text.to_owned()),
        }
    }
    if !is_behind {
        lines.extend(found.iter().map(line));
    }
    lines.join("\n") + "\n"
}

#[test]
fn issue_24_every_finding_above_info_on_the_public_traces_is_judged() {
    let Some(found) = found() else { return };
    let page = page();
    let text = std::fs::read_to_string(&page).unwrap();
    if std::env::var_os("ROWMILL_JUDGED").is_some_and(|of| of == "write") {
        std::fs::write(&page, written(&text, &found)).unwrap();
        return;
    }
    let judged: Vec<Vec<String>> = text.lines().filter_map(columns).collect();
    for cells in &judged {
        assert_eq!(cells.len(), COLUMNS, "{cells:?}");
        let verdict = cells[FOUND + 1].as_str();
        assert!(["true", "arguable", "false"].contains(&verdict), "{cells:?}");
        let is_bad = ["critical", "high"].contains(&cells[3].as_str());
        assert!(!is_bad || verdict != "false", "false at {}: {cells:?}", cells[3]);
    }
    let told = |rows: &[Vec<String>]| -> Vec<String> {
        rows.iter().map(|cells| cells[..FOUND].join(" | ")).collect()
    };
    let (found, judged) = (told(&found), told(&judged));
    let new: Vec<&String> = found.iter().filter(|row| !judged.contains(row)).collect();
    let gone: Vec<&String> = judged.iter().filter(|row| !found.contains(row)).collect();
    assert!(new.is_empty() && gone.is_empty(), "not judged: {new:#?}\nno longer found: {gone:#?}");
}
