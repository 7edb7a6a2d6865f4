//! Compares recordings of one job before and after a change, and checks the result against what is
//! known of the change.

use std::collections::BTreeMap;

use analyze::classify::ClassRule;
use analyze::diff::{self, Diff, DiffSubject, DiffUnit, Presence};
use analyze::{Classifier, Scope, WindowRule};
use trace::store::{Job, Trace};

use crate::fixture;

fn compared(before: &Job, after: &Job, rule: WindowRule) -> Diff {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [before, after].map(|job| {
        let scope = |trace| Scope::new(trace, rule, &classifier);
        job.traces.iter().map(scope).collect::<Vec<_>>()
    });
    diff::compare_jobs(&analyze::JobFacts::new(&scopes[0]), &analyze::JobFacts::new(&scopes[1]))
}

/// Returns the number of occurrences of a name on each side, summed over all shapes.
fn counts(diff: &Diff, subject: DiffSubject, name: &str) -> (u64, u64) {
    let found = diff.filter_subject(subject).filter(|change| change.name == name);
    found.fold((0, 0), |(before, after), change| {
        (before + change.before_count, after + change.after_count)
    })
}

#[test]
fn control_and_test_differ_as_expected() {
    let Some(control) = fixture::job("trace_diff/control.json.gz") else { return };
    let Some(test) = fixture::job("trace_diff/test.json.gz") else { return };
    let diff = compared(&control, &test, WindowRule::All);
    assert_eq!(diff.unit, DiffUnit::Window);
    let exposed = &diff.parts[1];
    assert_eq!(exposed.part, "exposed_communication");
    let near = |share: Option<f64>, known: f64| (share.unwrap() - known).abs() <= 0.01;
    assert!(near(exposed.before_span_pct, 18.92) && near(exposed.after_span_pct, 9.84));
    assert_eq!((exposed.before_ns, exposed.after_ns), (87_921_000, 73_298_000));
    assert_eq!(counts(&diff, DiffSubject::Call, "cudaGraphLaunch"), (0, 12));
    assert_eq!(counts(&diff, DiffSubject::Operator, "aten::copy_"), (444, 5232));
    let graph =
        diff.filter_subject(DiffSubject::Call).find(|change| change.name == "cudaGraphLaunch");
    assert_eq!(graph.unwrap().presence, Presence::Added);
    // Each operator has a single path in the call tree, so operators by name and by path must add
    // up to equal times.
    let spent = |subject| {
        let each = diff.filter_subject(subject).map(|change| (change.before_ns, change.after_ns));
        each.fold((0, 0), |sum, ns| (sum.0 + ns.0, sum.1 + ns.1))
    };
    assert_eq!(spent(DiffSubject::Operator), spent(DiffSubject::Path));
}

#[test]
fn steps_of_control_and_test_have_a_noise_floor() {
    let Some(control) = fixture::job("trace_diff/control.json.gz") else { return };
    let Some(test) = fixture::job("trace_diff/test.json.gz") else { return };
    let diff = compared(&control, &test, WindowRule::Steps);
    assert_eq!((diff.unit, diff.before.unit_count, diff.after.unit_count), (DiffUnit::Step, 6, 5));
    let rounding = 5;
    let sum = |of: fn(&diff::PartChange) -> i64| diff.parts.iter().map(of).sum::<i64>();
    let mean = |side: &diff::DiffSide| side.window_ns / side.unit_count as i64;
    assert!((sum(|part| part.before_mean_ns) - mean(&diff.before)).abs() <= rounding);
    assert!((sum(|part| part.after_mean_ns) - mean(&diff.after)).abs() <= rounding);
    assert!(diff.changes.iter().all(|change| change.noise_ns.is_some()));
    let noise = diff.changes.iter().filter(|change| change.is_noise).count();
    assert!(0 < noise && noise < diff.changes.len());
}

/// Returns the nanoseconds of each part of a time span, computed independently of `analyze` by a
/// sweep over the ends of device work, with classes judged by names.
fn swept(trace: &Trace, (from, until): (i64, i64)) -> BTreeMap<&'static str, i64> {
    const CLASSES: [&str; 3] = ["compute", "exposed_communication", "exposed_memory"];
    let mut moments: Vec<(i64, usize, i64)> = Vec::new();
    for row in trace.rows() {
        let category = usize::from(trace.slices.category[row as usize]);
        let class = match trace.categories[category].name.as_str() {
            "kernel" if trace.name(row).starts_with("nccl") => 1,
            "kernel" => 0,
            "gpu_memcpy" | "gpu_memset" => 2,
            _ => continue,
        };
        let start = trace.slices.start(row).clamp(from, until);
        let end = trace.slices.end(row).clamp(from, until);
        moments.extend([(start, class, 1), (end, class, -1)]);
    }
    moments.push((until, 0, 0));
    moments.sort_unstable();
    let (mut running, mut last) = ([0; 3], from);
    let mut found = BTreeMap::new();
    for (time, class, step) in moments {
        let part = running.iter().position(|count| *count > 0).map_or("idle", |at| CLASSES[at]);
        *found.entry(part).or_default() += time - last;
        last = time;
        running[class] += step;
    }
    found
}

/// Returns the steps of a trace, each from its start to the start of the next one, and the last to
/// its own end. Steps before the first device work are left out.
fn steps(trace: &Trace) -> Vec<(i64, i64)> {
    let is_step = |row: &u32| trace.name(*row).starts_with("ProfilerStep#");
    let on_host = |row: &u32| {
        let category = usize::from(trace.slices.category[*row as usize]);
        trace.categories[category].name == "user_annotation"
    };
    let mut spans: Vec<(i64, i64)> = trace
        .rows()
        .filter(|row| is_step(row) && on_host(row))
        .map(|row| (trace.slices.start(row), trace.slices.end(row)))
        .collect();
    spans.sort_unstable();
    let is_device = |row: &u32| {
        let category = usize::from(trace.slices.category[*row as usize]);
        trace.categories[category].name == "kernel"
    };
    let first = trace.rows().filter(is_device).map(|row| trace.slices.start(row)).min().unwrap();
    spans.retain(|(_, end)| first < *end);
    let ends: Vec<i64> = spans.iter().skip(1).map(|span| span.0).collect();
    for (span, end) in spans.iter_mut().zip(ends) {
        span.1 = end;
    }
    spans
}

#[test]
fn nine_tenths_of_what_control_and_test_differ_by_are_explained() {
    let Some(control) = fixture::job("trace_diff/control.json.gz") else { return };
    let Some(test) = fixture::job("trace_diff/test.json.gz") else { return };
    let diff = compared(&control, &test, WindowRule::Steps);
    let verdict = &diff.verdict;
    let expected = "77.5 → 129 ms: slower by 66 %, of which compute +48.2 ms, exposed memory +13.3 ms, \
                    idle -7.90 ms; most of it in CompiledFunctionBackward +28.5 ms, aten::copy_ +17.5 ms";
    assert_eq!(verdict.text, expected);
    assert!(verdict.explained_pct.unwrap() >= 90.0, "{verdict:?}");
    assert!((51_000_000..52_000_000).contains(&verdict.delta_ns), "{verdict:?}");
    // The change is recomputed independently, as the difference of the means over the steps of each
    // side.
    let rounding = 1;
    let mut explained = 0;
    for part in &diff.parts {
        let mean = |job: &Job, count: usize| {
            let trace = &job.traces[0];
            let mut steps = steps(trace);
            steps.drain(..steps.len() - count);
            let ns = |span: &(i64, i64)| swept(trace, *span).get(part.part).copied().unwrap_or(0);
            steps.iter().map(ns).sum::<i64>() / count as i64
        };
        let (before, after) = (mean(&control, 6), mean(&test, 5));
        assert!((part.before_mean_ns - before).abs() <= rounding, "{}: {before}", part.part);
        assert!((part.after_mean_ns - after).abs() <= rounding, "{}: {after}", part.part);
        if verdict.parts.iter().any(|cause| cause.name == part.part.replace('_', " ")) {
            explained += after - before;
        }
    }
    let missed = (verdict.delta_ns - explained).abs() as f64 / verdict.delta_ns as f64;
    assert!(missed <= 0.1, "{explained} of {}", verdict.delta_ns);
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
