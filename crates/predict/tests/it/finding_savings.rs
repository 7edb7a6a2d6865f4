//! Tests of savings that are computed by simulation, on a step that is small enough to compute by
//! hand.

use analyze::findings::{
    self, Action, Confidence, Finding, FindingCategory, Remedy, RowEdit, RuleSettings, Saving,
    SavingSource, Severity,
};
use predict::calibration::{Calibration, collect};
use predict::finding_savings;
use predict::prediction::{self, Draws};

use crate::edits::step;
use crate::fixture::{Recording, job, scopes};

const DRAWS: Draws = Draws::new(1, 0);

fn finding(rule: &str, rows: Vec<u32>, action: Action) -> Finding {
    let mid_ns = 50_000;
    Finding {
        rule: rule.to_owned(),
        title: String::new(),
        category: FindingCategory::Kernel,
        severity: Severity::High,
        confidence: Confidence::High,
        ranks: vec![0],
        steps: vec![1],
        what: String::new(),
        advice: String::new(),
        held_back: None,
        limiting_factor: None,
        saving: Some(Saving { mid_ns, high_ns: 100_000, mid_pct: 12.5, ..Saving::default() }),
        split: None,
        numbers: Vec::new(),
        evidence: Vec::new(),
        limits: Vec::new(),
        key: rule.to_owned(),
        remedy: Some(Remedy { edits: vec![RowEdit { rank: 0, rows, spans: Vec::new(), action }] }),
    }
}

/// Returns the repriced findings in their order, each as rule, saving in microseconds, severity and
/// source.
fn repriced(mut findings: Vec<Finding>) -> Vec<(String, i64, Severity, SavingSource)> {
    let step = step();
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &[0]);
    let found = prediction::predict_step(&step, &calibration, DRAWS).expect("no cycle");
    finding_savings::reprice_findings(&step, &found.simulation, |_, row| row < 100, &mut findings);
    let row = |finding: Finding| {
        let saving = finding.saving.expect("a saving");
        (finding.rule, saving.mid_ns / 1_000, finding.severity, saving.source)
    };
    findings.into_iter().map(row).collect()
}

fn check(rows: Vec<u32>, action: Action, expected: i64) {
    let found = repriced(vec![finding("X", rows, action)]);
    assert_eq!((found[0].1, found[0].3), (expected, SavingSource::Simulation), "{action:?}");
}

#[test]
fn a_remedy_is_applied_to_the_simulated_step() {
    // The rows of the step are, in order: the step, bag, launch, k1, bag, launch, k2, c, launch,
    // k3, item, wait.
    // Without k1, k2 runs from 52 to 102 µs and k3 from 103 to 113 µs. The wait returns at 117 µs
    // instead of 188 µs.
    check(vec![3], Action::Scale(0.0), 71);
    check(vec![3], Action::Overlap, 71);
    // With k1 shortened from 100 to 60 µs, all later work ends 40 µs earlier.
    check(vec![3], Action::ShortenTo(60_000), 40);
    check(vec![3], Action::ShortenTo(500_000), 0);
    // A synchronization without work to wait for returns 4 µs after its call at 105 µs.
    check(vec![11], Action::Unblock, 79);
    check(vec![10], Action::Unblock, 79);
    // Operator c may begin earlier, but its kernel cannot, so nothing is saved.
    check(vec![7], Action::CloseGap, 0);
    // Without the host time of both bags, k1 is launched at 10 µs instead of 15 µs. All later
    // kernels queue behind k1.
    check(vec![1, 4], Action::Scale(0.0), 5);
    // Without any kernel, the wait saves 79 µs. Removing the host time around it saves another 7
    // µs.
    check(vec![3, 6, 9, 10], Action::Scale(0.0), 86);
    // The saving is limited to the total time of the affected rows, here 60 µs.
    let mut little = finding("X", vec![3], Action::Scale(0.0));
    little.saving = little.saving.map(|saving| Saving { high_ns: 60_000, ..saving });
    assert_eq!(repriced(vec![little])[0].1, 60);
}

#[test]
fn findings_without_a_counterpart_keep_their_saving() {
    let kept = [
        finding("A", vec![3], Action::ArriveEarlier(10)),
        finding("B", vec![3], Action::CloseGap),
        // Row 50 lies in the step but has no part in the program, and row 200 belongs to another
        // step.
        finding("C", vec![3, 50], Action::Scale(0.0)),
        finding("D", vec![200], Action::Scale(0.0)),
    ];
    let found = repriced(kept.to_vec());
    let recorded = |rule: &str| (rule.to_owned(), 50, Severity::High, SavingSource::Recording);
    assert_eq!(found, ["A", "B", "C", "D"].map(recorded));
    // Among findings of one severity, simulated savings sort first, however small. The other
    // findings keep their order.
    let small = finding("Z", vec![3], Action::ShortenTo(78_000));
    let found = repriced([kept.as_slice(), &[small]].concat());
    let order: Vec<&str> = found.iter().map(|one| one.0.as_str()).collect();
    assert_eq!(order, ["Z", "A", "B", "C", "D"]);
    assert_eq!((found[0].1, found[0].3), (22, SavingSource::Simulation));
    // A finding that saves less in the simulation gets a lower severity.
    let tiny = finding("Z", vec![7], Action::CloseGap);
    let found = repriced([kept.as_slice(), &[tiny]].concat());
    assert_eq!(found[4], ("Z".to_owned(), 0, Severity::Info, SavingSource::Simulation));
}

#[test]
fn findings_of_a_real_job_are_repriced() {
    let Some(recording) = Recording::read("dlrm8/dlrm_kineto.tar.gz") else { return };
    let Some(read) = job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let scopes = scopes(&read.traces);
    let facts = analyze::JobFacts::new(&scopes);
    let mut findings =
        findings::collect_findings(&facts, &RuleSettings::default()).expect("findings").findings;
    let step = recording.step(0);
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &(0..8).collect::<Vec<_>>());
    let found = prediction::predict_step(&step, &calibration, DRAWS).expect("no cycle");
    let spans = recording.spans();
    let is_inside = |rank: u32, row: u32| {
        let start = scopes[rank as usize].trace.slices.start(row);
        (spans[rank as usize][0].start..spans[rank as usize][0].end).contains(&start)
    };
    let before = findings.len();
    let count =
        finding_savings::reprice_findings(&step, &found.simulation, is_inside, &mut findings);
    let simulated =
        |one: &&Finding| one.saving.is_some_and(|saving| saving.source == SavingSource::Simulation);
    assert_eq!((findings.len(), findings.iter().filter(simulated).count()), (before, count));
    assert!(count >= 3, "{count}");
    for finding in findings.iter().filter(simulated) {
        let saving = finding.saving.expect("a saving");
        assert!(saving.low_ns <= saving.mid_ns && saving.mid_ns <= saving.high_ns, "{saving:?}");
    }
}
