//! Checks recordings taken on demand, which have no `ProfilerStep`. The steps of such recordings
//! are inferred from the optimizer's annotations, and a job that waits for its loader must get that
//! finding.

use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::findings::{FindingReport, RuleSettings};
use analyze::{Classifier, Scope, StepMark, WindowRule, quality, steps};
use trace::open;
use trace::store::Job;

use crate::findings::report;
use crate::fixture;

/// Reads a recording by `rowmill capture --iterations 6` of a PyTorch 2.14 job on two cores. The
/// `DataLoader` of the job has no workers, and its dataset parses 400 numbers of text per row.
fn recorded_on_demand() -> Job {
    read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/on_demand_cpu.json.gz"))
}

fn read(path: PathBuf) -> Job {
    open::read(&open::ReadRequest { paths: vec![path], threads: 1 }).unwrap()
}

fn found(job: &Job) -> (Vec<Scope<'_>>, FindingReport) {
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::Steps, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    let report = report(job, &scopes, &RuleSettings::default());
    (scopes, report)
}

#[test]
fn a_loader_that_starves_a_cpu_job_is_found_in_an_on_demand_recording() {
    let job = recorded_on_demand();
    let (scopes, report) = found(&job);
    assert_eq!(scopes[0].step_mark, Some(StepMark::OptimizerStep));
    // Kineto stops inside the sixth `Optimizer.step`, so five ends and therefore four steps are
    // known.
    let rows = steps::list_steps(&scopes[0]);
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.is_whole), "{rows:?}");
    let stall = report.findings.iter().find(|one| one.rule == "H02").expect("H02");
    assert!(stall.what.starts_with("The model waits"), "{}", stall.what);
    assert!(stall.what.contains("num_workers=0"), "{}", stall.what);
    // Total duration of the rows of `DataLoader.__next__` in these four steps, and its share of the
    // window.
    let loading_ns = 54_737_531 + 68_604_917 + 72_262_397 + 86_093_509;
    let share = 100.0 * loading_ns as f64 / scopes[0].window.length() as f64;
    let number = stall.numbers.iter().find(|number| number.name == "idle_pct").expect("a share");
    assert!((number.value - share).abs() < 0.01, "{} {share}", number.value);
    let saving = stall.saving.as_ref().expect("a saving");
    // With four workers a quarter of the loading remains visible, because the rest of a step is
    // shorter than that.
    let step_ns = scopes[0].window.length() / 4;
    let per_step = step_ns - loading_ns / 16;
    assert!((saving.mid_ns - per_step).abs() * 20 < per_step, "{saving:?} {per_step}");
    let issues = quality::find_issues(&analyze::JobFacts::new(&scopes).ranks);
    assert!(issues.iter().any(|issue| issue.id == "inferred-steps"), "{issues:?}");
}

#[test]
fn steps_of_a_resnet_without_its_profiler_steps_are_inferred() {
    let Some(path) = fixture::path("traces/modern/resnet50_2021_workers0.json.gz") else { return };
    let (whole, mut without) = (read(path.clone()), read(path));
    let trace = &mut without.traces[0];
    let unknown = trace.category("no_annotation");
    for row in trace.rows() {
        if trace.name(row).starts_with("ProfilerStep#") {
            trace.slices.category[row as usize] = unknown;
        }
    }
    let ((named, _), (inferred, report)) = (found(&whole), found(&without));
    assert_eq!(named[0].step_mark, Some(StepMark::ProfilerStep));
    assert_eq!(inferred[0].step_mark, Some(StepMark::OptimizerStep));
    let mean = |scope: &Scope<'_>| {
        let steps = &scope.window.steps;
        steps.iter().map(|step| step.end - step.start).sum::<i64>() / steps.len() as i64
    };
    let (named_ns, inferred_ns) = (mean(&named[0]), mean(&inferred[0]));
    assert!((named_ns - inferred_ns).abs() * 20 < named_ns, "{named_ns} {inferred_ns}");
    let stall = report.findings.iter().find(|one| one.rule == "H02").expect("H02");
    assert!(stall.what.contains("num_workers=0"), "{}", stall.what);
}
