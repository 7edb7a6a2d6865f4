//! Checks findings on recorded pairs of PyTorch steps, before and after a cure. The saving that a
//! rule predicts is compared with the measured gain in un-profiled step times.

use std::path::{Path, PathBuf};

use analyze::WindowRule;
use analyze::findings::RuleSettings;
use serde_json::Value;
use trace::open::{self, ReadRequest};

/// Returns the folders of the recorded suites, each of which contains pairs.
fn suites() -> Vec<PathBuf> {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/record");
    let machines =
        records.read_dir().expect("records").map(|entry| entry.expect("a record").path());
    let mut suites: Vec<PathBuf> =
        machines.map(|path| path.join("suite/cases")).filter(|path| path.is_dir()).collect();
    suites.sort();
    suites
}

/// Returns the 5th percentile, median and 95th percentile of a variant's steps, in microseconds.
fn times(pair: &Path, variant: &str) -> [f64; 3] {
    let text = std::fs::read_to_string(pair.join(format!("{variant}-times.json"))).expect("times");
    let times: Value = serde_json::from_str(&text).expect("JSON");
    ["p5", "median", "p95"].map(|name| times["step_us"][name].as_f64().expect("a number"))
}

/// Returns the saving that a rule predicts, in microseconds per step, or `None` if the rule
/// reported nothing.
fn said_us(pair: &Path, rule: &str) -> Option<f64> {
    let paths = vec![pair.join("before.json.gz")];
    let job = open::read(&ReadRequest { paths, threads: 1 }).expect("a trace");
    let report = crate::findings::find(&job, WindowRule::Steps, &RuleSettings::default());
    let found = report.findings.iter().find(|finding| finding.rule == rule)?;
    Some(found.saving?.mid_ns as f64 / 1e3)
}

/// The rule that each pair is about, for the pairs that have one.
const RULES: [(&str, &str); 4] = [
    ("fine-grained-copies", "H11"),
    ("host-transform", "H13"),
    ("many-embedding-bags", "K10"),
    ("unfused-optimizer", "K09"),
];

#[test]
fn savings_match_the_recorded_pairs() {
    let mut judged = 0;
    for suite in suites() {
        for (name, rule) in RULES {
            let pair = suite.join(name);
            let (before, after) = (times(&pair, "before"), times(&pair, "after"));
            let (gain, said) = (before[1] - after[1], said_us(&pair, rule));
            // If the ranges from the 5th to the 95th percentile of both sides overlap, the gain is
            // too uncertain to judge. The optimizer's pair is judged in spite of that, because its
            // gain is 40 % of the step.
            let is_judged = before[0] > after[2] || name == "unfused-optimizer";
            let verdict = if is_judged { "judged" } else { "listed" };
            println!("{name} {rule}: says {said:?} µs, gained {gain:.0} µs, {verdict}");
            if is_judged {
                let said = said.unwrap_or_else(|| panic!("{name}: {rule} found nothing"));
                assert!((said / gain - 1.0).abs() <= 0.3, "{name}: {said:.0} of {gain:.0} µs");
                judged += 1;
            }
        }
    }
    assert!(judged >= 3, "{judged} pairs");
}

#[test]
fn the_finding_disappears_with_its_cure() {
    for suite in suites() {
        for (name, rule) in RULES {
            let paths = vec![suite.join(name).join("after.json.gz")];
            let job = open::read(&ReadRequest { paths, threads: 1 }).expect("a trace");
            let report = crate::findings::find(&job, WindowRule::Steps, &RuleSettings::default());
            assert!(report.findings.iter().all(|finding| finding.rule != rule), "{name}: {rule}");
        }
    }
}
