//! Two recordings of one job, before and after a change, against what is known of them.

use analyze::classify::ClassRule;
use analyze::diff::{self, Diff, Presence, Subject, Unit};
use analyze::{Classifier, Scope, WindowRule};
use trace::store::Job;

use crate::fixture;

fn compared(before: &Job, after: &Job, rule: WindowRule) -> Diff {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [before, after].map(|job| {
        let scope = |trace| Scope::new(trace, rule, &classifier);
        job.traces.iter().map(scope).collect::<Vec<_>>()
    });
    diff::of(&analyze::Job::new(&scopes[0]), &analyze::Job::new(&scopes[1]))
}

/// How often something is on each side, whatever its shape.
fn counts(diff: &Diff, subject: Subject, name: &str) -> (u64, u64) {
    let found = diff.of_subject(subject).filter(|change| change.name == name);
    found.fold((0, 0), |(before, after), change| {
        (before + change.before_count, after + change.after_count)
    })
}

#[test]
fn control_and_test_differ_as_is_known() {
    let Some(control) = fixture::job("trace_diff/control.json.gz") else { return };
    let Some(test) = fixture::job("trace_diff/test.json.gz") else { return };
    let diff = compared(&control, &test, WindowRule::All);
    assert_eq!(diff.unit, Unit::Window);
    let exposed = &diff.parts[1];
    assert_eq!(exposed.part, "exposed_communication");
    let near = |share: Option<f64>, known: f64| (share.unwrap() - known).abs() <= 0.01;
    assert!(near(exposed.before_span_pct, 18.92) && near(exposed.after_span_pct, 9.84));
    assert_eq!((exposed.before_ns, exposed.after_ns), (87_921_000, 73_298_000));
    assert_eq!(counts(&diff, Subject::Call, "cudaGraphLaunch"), (0, 12));
    assert_eq!(counts(&diff, Subject::Operator, "aten::copy_"), (444, 5232));
    let graph = diff.of_subject(Subject::Call).find(|change| change.name == "cudaGraphLaunch");
    assert_eq!(graph.unwrap().presence, Presence::Added);
    // Each operator has one place: both ways of looking at them spend the same.
    let spent = |subject| {
        let each = diff.of_subject(subject).map(|change| (change.before_ns, change.after_ns));
        each.fold((0, 0), |sum, ns| (sum.0 + ns.0, sum.1 + ns.1))
    };
    assert_eq!(spent(Subject::Operator), spent(Subject::Path));
}

#[test]
fn steps_of_control_and_test_have_a_noise_floor() {
    let Some(control) = fixture::job("trace_diff/control.json.gz") else { return };
    let Some(test) = fixture::job("trace_diff/test.json.gz") else { return };
    let diff = compared(&control, &test, WindowRule::Steps);
    assert_eq!((diff.unit, diff.before.unit_count, diff.after.unit_count), (Unit::Step, 6, 5));
    let rounding = 5;
    let sum = |of: fn(&diff::PartChange) -> i64| diff.parts.iter().map(of).sum::<i64>();
    let mean = |side: &diff::Side| side.window_ns / side.unit_count as i64;
    assert!((sum(|part| part.before_ns) - mean(&diff.before)).abs() <= rounding);
    assert!((sum(|part| part.after_ns) - mean(&diff.after)).abs() <= rounding);
    assert!(diff.changes.iter().all(|change| change.noise_ns.is_some()));
    let noise = diff.changes.iter().filter(|change| change.is_noise).count();
    assert!(0 < noise && noise < diff.changes.len());
}

#[test]
fn a_job_compared_with_itself_has_not_changed() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let diff = compared(&job, &job, WindowRule::All);
    assert_eq!((diff.before.rank_count, diff.after.unit_count), (8, 8));
    assert!(!diff.changes.is_empty());
    assert!(diff.changes.iter().all(|change| change.is_noise && change.delta_ns == 0));
    assert!(diff.parts.iter().chain(&diff.totals).all(|part| part.delta_ns == 0));
}
