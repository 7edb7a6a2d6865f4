use trace::store::{Loss, NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;

/// Builds two steps in which the host reads a scalar behind a long kernel and then launches another
/// kernel.
fn reading() -> Trace {
    reading_in_steps(&[1000, 1000])
}

/// Builds the trace of [`reading`] with steps of given lengths.
fn reading_in_steps(lengths: &[i64]) -> Trace {
    let mut trace = Trace::default();
    for (step, length) in lengths.iter().enumerate() {
        let at: i64 = lengths[..step].iter().sum();
        let id = 10 * step as u64;
        let name = format!("ProfilerStep#{}", step + 5);
        let rows = [
            ("user_annotation", name.as_str(), (9, 9), (at, at + length), None),
            ("cpu_op", "aten::mm", (9, 9), (at, at + 20), None),
            ("cuda_runtime", "cudaLaunchKernel", (9, 9), (at + 5, at + 15), Some(id + 1)),
            ("cpu_op", "aten::item", (9, 9), (at + 20, at + 640), None),
            ("cuda_runtime", "cudaMemcpyAsync", (9, 9), (at + 30, at + 630), Some(id + 2)),
            ("cpu_op", "aten::mm", (9, 9), (at + 900, at + 930), None),
            ("cuda_runtime", "cudaLaunchKernel", (9, 9), (at + 905, at + 915), Some(id + 3)),
            ("kernel", "gemm", (0, 7), (at + 20, at + 620), Some(id + 1)),
            (
                "gpu_memcpy",
                "Memcpy DtoH (Device -> Pinned)",
                (0, 7),
                (at + 621, at + 625),
                Some(id + 2),
            ),
            ("kernel", "gemm", (0, 7), (at + 920, at + 990), Some(id + 3)),
        ];
        for (category, name, track, span, correlation) in rows {
            let slice = NewSlice::new(category, name, track, span);
            trace.push(&NewSlice { correlation, ..slice });
        }
    }
    trace
}

fn found(trace: &Trace, settings: &str) -> Result<FindingReport, Error> {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(trace, WindowRule::All, &classifier)];
    collect_findings(&JobFacts::new(&scopes), &toml::from_str(settings).unwrap())
}

fn rules_of(report: &FindingReport) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.rule.as_str()).collect()
}

#[test]
fn a_saving_is_what_the_graph_allows_and_never_more_than_the_rows() {
    let trace = reading();
    let report = found(&trace, "").unwrap();
    let read = report.findings.iter().find(|one| one.rule == "H05").unwrap();
    let saving = read.saving.unwrap();
    // The host is blocked for 600 of 1000 ns, but the device is idle for only 326 of them. Without
    // the wait for the scalar, the second kernel starts at least 300 ns earlier.
    assert_eq!(saving.high_ns, 326);
    assert!(0 < saving.mid_ns && saving.mid_ns <= saving.high_ns, "{saving:?}");
    assert_eq!((read.steps.as_slice(), read.key.as_str()), ([5, 6].as_slice(), "H05:aten::item"));
    assert_eq!(read.severity, Severity::Critical);
    assert!(report.joint_saving_ns.is_none_or(|joint| joint >= saving.mid_ns));
}

#[test]
fn a_saving_within_step_noise_is_not_counted() {
    let steady = reading_in_steps(&[1000, 1000, 1000, 1100]);
    let trace = reading_in_steps(&[1000, 1000, 1000, 2500]);
    let report = |trace: &Trace| found(trace, "").unwrap();
    let read = |report: &FindingReport| {
        let found = report.findings.iter().find(|one| one.rule == "H05").cloned();
        found.expect("a read")
    };
    assert!(!read(&report(&steady)).saving.unwrap().is_within_noise());
    let unsteady = report(&trace);
    let saving = read(&unsteady).saving.unwrap();
    assert!(saving.is_within_noise() && saving.mid_ns > 0, "{saving:?}");
    assert_eq!(unsteady.joint_saving_ns, None);
    // The severity stays, because the rows of the finding still show its cause.
    assert!(read(&unsteady).severity <= Severity::High);
}

#[test]
fn quality_comes_first_and_the_order_is_that_of_severity() {
    let trace = reading();
    let report = found(&trace, "").unwrap();
    let is_quality = |one: &Finding| one.category == FindingCategory::Quality;
    assert!(report.findings.is_sorted_by_key(|one| (!is_quality(one), one.severity)));
    assert!(is_quality(&report.findings[0]));
}

#[test]
fn known_findings_are_suppressed_with_their_reason() {
    let trace = reading();
    let known = "[[suppress]]\nkey = \"H05:aten::item\"\nreason = \"metrics\"";
    let report = found(&trace, known).unwrap();
    assert!(!rules_of(&report).contains(&"H05"));
    assert_eq!(report.suppressed[0].reason, "metrics");
    let whole = "[[suppress]]\nkey = \"H05\"\nreason = \"metrics\"";
    assert!(!rules_of(&found(&trace, whole).unwrap()).contains(&"H05"));
}

#[test]
fn limits_decide_and_are_reported() {
    let trace = reading();
    let report = found(&trace, "[limits.H05]\nreads_per_step = 2").unwrap();
    assert!(!rules_of(&report).contains(&"H05"));
    let report = found(&trace, "[limits.H05]\nblocked_pct = 59.5").unwrap();
    let read = report.findings.iter().find(|one| one.rule == "H05").unwrap();
    assert!(read.limits.contains(&Number { name: "blocked_pct", value: 59.5 }));
}

#[test]
fn rules_of_the_users_are_conditions_on_tables() {
    let trace = reading();
    let rule = |condition: &str| {
        format!(
            "[[rule]]\nid = \"own\"\ntitle = \"a slow product\"\ntable = \"kernels\"\nwhere = {condition:?}\n\
             advice = \"ask\"\nseverity = \"high\""
        )
    };
    let report = found(&trace, &rule("name=~^gem count>=4 total_ns>1000")).unwrap();
    let own = report.findings.iter().find(|one| one.rule == "own").unwrap();
    assert_eq!((own.severity, own.category), (Severity::High, FindingCategory::Own));
    assert_eq!(own.evidence[0].total_ns, 1340);
    assert!(!rules_of(&found(&trace, &rule("name=~^gem count>4")).unwrap()).contains(&"own"));
}

#[test]
fn wrong_settings_name_their_place() {
    let trace = reading();
    let refused = |settings: &str| found(&trace, settings).unwrap_err().to_string();
    assert!(refused("[limits.L99]\nx = 1").contains("L01"), "{}", refused("[limits.L99]\nx = 1"));
    assert!(refused("[limits.H05]\nx = 1").contains("reads_per_step"));
    assert!(refused("[limits.H05]\nblocked_pct = -1").contains("limits.H05.blocked_pct"));
    assert!(refused("[[suppress]]\nkey = \"H99:x\"\nreason = \"\"").contains("H99"));
    let rule = |id: &str, condition: &str| {
        format!(
            "[[rule]]\nid = {id:?}\ntitle = \"\"\ntable = \"kernels\"\nwhere = {condition:?}\nadvice = \"\""
        )
    };
    assert!(refused(&rule("H05", "count>1")).contains("no other rule"));
    assert!(refused(&rule("own", "count")).contains("COLUMN"));
    assert!(refused(&rule("own", "count>many")).contains("a number"));
    assert!(refused(&rule("own", "name=~[")).contains("pattern"));
    assert!(refused(&rule("own", "colour=red")).contains("total_ns"));
}

#[test]
fn every_rule_has_a_page_that_names_its_limits() {
    for rule in rules() {
        let title = format!("# {} · {}\n", rule.id, rule.title);
        assert!(rule.page.starts_with(&title), "{}: {title}", rule.id);
        for part in ["**Found**", "**Cause.**", "**Cure.**", "**Ignore it**"] {
            assert!(rule.page.contains(part), "{}: {part}", rule.id);
        }
        for limit in rule.limits {
            let line = format!("| `{}` | {} | {} |", limit.name, limit.default, limit.meaning);
            assert!(rule.page.contains(&line), "{}: {line}", rule.id);
        }
    }
    let index = include_str!("../../../../docs/rules/README.md");
    let listed =
        |rule: &&Rule| index.contains(&format!("| [{0}]({0}.md) | {1} |", rule.id, rule.title));
    assert_eq!(rules().filter(listed).count(), rules().count());
    let mut ids: Vec<&str> = rules().map(|rule| rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), rules().count());
}

/// Returns the report of a recording with the given losses.
fn lossy(losses: &[Loss]) -> FindingReport {
    let mut trace = reading();
    for (at, loss) in losses.iter().enumerate() {
        trace.losses.count(*loss, || format!("byte {at}: expected one thing, got another"));
    }
    found(&trace, "").unwrap()
}

#[test]
fn the_kind_of_loss_decides_title_and_remedy() {
    let q02 = |losses: &[Loss]| {
        let report = lossy(losses);
        report.findings.into_iter().find(|one| one.rule == "Q02").expect("a finding")
    };
    let negative = q02(&[Loss::NegativeDuration]);
    assert_eq!(negative.title, "durations below zero");
    assert!(negative.what.contains("1 × negative duration, taken as 0 (byte 0: expected"));
    assert!(negative.advice.contains("update PyTorch"), "{}", negative.advice);
    let copies = q02(&[Loss::OtherCapture]);
    assert_eq!(copies.title, "a rank was recorded several times");
    assert!(copies.advice.contains("one recording of each rank"), "{}", copies.advice);
    let cut = q02(&[Loss::Truncated]);
    assert!(cut.advice.contains("copy the file again"), "{}", cut.advice);
    // The worst kind of loss decides the title of the finding, and the text names every kind.
    let both = q02(&[Loss::NoTime, Loss::NegativeDuration, Loss::BehindTheEnd]);
    assert_eq!(both.title, "events behind the end of the trace");
    for kind in ["event without its time", "negative duration", "behind the end"] {
        assert!(both.what.contains(kind), "{kind}: {}", both.what);
    }
    let mut lost = reading();
    for id in 0..3 {
        let call =
            NewSlice::new("cuda_runtime", "cudaLaunchKernel", (9, 9), (1950 + id, 1951 + id));
        lost.push(&NewSlice { correlation: Some(900 + id as u64), ..call });
    }
    let report = found(&lost, "").unwrap();
    let lost = report.findings.iter().find(|one| one.rule == "Q02").expect("lost work");
    assert_eq!(lost.title, "device work was lost");
}

#[test]
fn steps_and_what_lies_beside_them_add_up_to_the_window() {
    let account = |trace: &Trace| found(trace, "").unwrap().step_summary;
    let whole = account(&reading());
    assert!(whole.starts_with("2 steps of 1.00 µs (mean) make a window of 2.00 µs"), "{whole}");
    let mut beside = reading();
    beside.push(&NewSlice::new("cpu_op", "aten::mm", (9, 9), (2000, 2500)));
    let beside = account(&beside);
    let expected = "2 steps of 1.00 µs (mean) and 500 ns beside them make a window of 2.50 µs";
    assert!(beside.starts_with(expected), "{beside}");
    let mut overlapping = reading();
    overlapping.slices.duration[0] = 1200;
    let overlapping = account(&overlapping);
    assert!(overlapping.contains("which overlap, in a window of 2.00 µs"), "{overlapping}");
    // The shares of host, devices and waits on the critical path must add up to 100 %.
    let shares: f64 = whole
        .split([' ', ':', ','])
        .collect::<Vec<_>>()
        .windows(2)
        .filter(|pair| pair[1] == "%")
        .filter_map(|pair| pair[0].parse::<f64>().ok())
        .sum();
    assert!((shares - 100.0).abs() < 0.2, "{whole}");
}
