//! Host time that no operator covers bounds a step like any other: rules name it, and savings and
//! what-ifs price it.

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

/// The saving of a finding in microseconds of a step.
fn saved_us(finding: &Finding) -> i64 {
    finding.saving.expect("a saving").mid_ns / 1_000
}

#[test]
fn case_01_host_code_that_no_row_covers_is_found_beside_a_device() {
    for name in ["61-untraced-loader", "64-untraced-sync"] {
        let Some(job) = case(&format!("01-untraced-host-gaps/{name}")) else { return };
        let found = finding(&job, "H13");
        // From the start of a step to its first operator, of which 5.8 ms are the loader's.
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
    // Ten steps, in each of which half of 5.8 ms goes.
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

/// A real pair: a job on CPUs that writes its weights to the disk every three steps, and one whose
/// thread writes a copy.
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
    // The recorded steps of the pair take 5.51 and 3.37 ms in the mean.
    assert!((1_000..=2_200).contains(&saved_us(&stall)), "{stall:?}");
    assert!(found("after.json.gz").is_none());
}
