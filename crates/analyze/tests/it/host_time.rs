//! Checks that host time outside all operators is reported by rules and priced by savings and
//! what-ifs, because it limits a step like any other time.

use std::path::Path;

use analyze::findings::{Finding, RuleSettings};
use analyze::{WindowRule, what_if};
use trace::open::{self, ReadRequest};
use trace::store::Job;

use crate::findings::find;
use crate::fixture;

fn case(name: &str) -> Option<Job> {
    let paths = vec![fixture::path(&format!("cases/{name}/t.json"))?];
    Some(open::read(&ReadRequest { paths, threads: 1 }).expect("a trace"))
}

fn finding(job: &Job, rule: &str) -> Finding {
    let report = find(job, WindowRule::Steps, &RuleSettings::default());
    report.findings.into_iter().find(|one| one.rule == rule).expect(rule)
}

/// Returns the saving of a finding in microseconds per step.
fn saved_us(finding: &Finding) -> i64 {
    finding.saving.expect("a saving").mid_ns / 1_000
}

#[test]
fn case_01_host_code_that_no_row_covers_is_found_beside_a_device() {
    for name in ["61-untraced-loader", "64-untraced-sync"] {
        let Some(job) = case(&format!("01-untraced-host-gaps/{name}")) else { return };
        let found = finding(&job, "H13");
        // The pause lasts from the start of a step to its first operator, and 5.8 ms of it belong
        // to the loader.
        assert!(found.what.contains("5.90 ms (59.0 %"), "{name}: {}", found.what);
        assert!((2_700..=3_000).contains(&saved_us(&found)), "{name}: {found:?}");
    }
}

#[test]
fn case_03_a_frame_of_python_is_worth_what_an_operator_in_its_place_is() {
    let Some(frame) = case("03-python-frame-not-priced/63-frame-sync") else { return };
    let Some(operator) = case("03-python-frame-not-priced/67-op-sync") else { return };
    let saved = [&frame, &operator].map(|job| saved_us(&finding(job, "H01")));
    assert!((2_800..=3_000).contains(&saved[0]), "{saved:?}");
    assert!((saved[0] - saved[1]).abs() <= 30, "{saved:?}");
    let scopes: Vec<_> = frame.traces.iter().map(crate::attribution::whole).collect();
    let facts = analyze::JobFacts::new(&scopes);
    let question = what_if::parse("name=~read_batch x0.5").expect("a what-if");
    let gained = what_if::answer_questions(&facts, &[question]);
    // The window has ten steps, and the edit removes half of 5.8 ms in each of them.
    let saving_us = gained.windows[0].saving_ns / 1_000;
    assert!((28_000..=29_100).contains(&saving_us), "{gained:?}");
}

#[test]
fn preprocessing_before_the_first_launch_of_a_step_is_found() {
    let Some(job) = fixture::job("modern/h100_timesformer.json.gz") else { return };
    let found = finding(&job, "H13");
    let share = found.numbers.iter().find(|number| number.name == "time_pct").expect("a share");
    assert!(share.value > 50.0, "{}", found.what);
    assert!(saved_us(&found) > 90_000, "{found:?}");
}

/// The fixture is a real pair: a job on CPUs that writes its weights to disk every three steps, and
/// the same job with a thread that writes a copy.
#[test]
fn weights_that_are_written_every_few_steps_are_found_without_a_device() {
    let cases = "../../bench/record/amd-epyc-2cpu/suite/cases/periodic-io";
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join(cases);
    let found = |name: &str| {
        let job = open::read(&ReadRequest { paths: vec![cases.join(name)], threads: 1 }).unwrap();
        let report = find(&job, WindowRule::Steps, &RuleSettings::default());
        report.findings.into_iter().find(|one| one.rule == "H03")
    };
    let stall = found("before.json.gz").expect("H03");
    assert!(stall.what.starts_with("Every 3 steps the host spends 5."), "{}", stall.what);
    // The mean recorded steps of the pair take 5.51 ms and 3.37 ms.
    assert!((1_000..=2_200).contains(&saved_us(&stall)), "{stall:?}");
    assert!(found("after.json.gz").is_none());
}
