//! Compares the savings that findings promise with measured gains, and with bounds that no change
//! can exceed.

use analyze::classify::ClassRule;
use analyze::findings::{RuleSettings, Severity};
use analyze::what_if::{self, NewWindow};
use analyze::{Classifier, Scope, WindowRule};
use trace::store::{Job, Trace};

use crate::findings::report;
use crate::fixture;

fn scope(trace: &Trace) -> Scope<'_> {
    Scope::new(trace, WindowRule::Steps, &Classifier::new(ClassRule::Category))
}

/// Returns the scope of a trace restricted to the steps with the given numbers.
fn steps<'a>(trace: &'a Trace, numbers: std::ops::RangeInclusive<i64>) -> Scope<'a> {
    let mut scope = scope(trace);
    scope.window.steps.retain(|step| numbers.contains(&step.number));
    scope.window.start = scope.window.steps.first().expect("a step").start;
    scope.window.end = scope.window.steps.last().expect("a step").end;
    scope
}

/// Returns the windows of the ranks after an edit, followed by the window of the job.
fn after(job: &Job, edit: &str) -> Vec<NewWindow> {
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    what_if::answer_questions(
        &analyze::JobFacts::new(&scopes),
        &[what_if::parse(edit).expect("an edit")],
    )
    .windows
}

/// All fixture traces that are small enough to test every one of them.
const ALL: [&str; 12] = [
    "dlrm8",
    "linear",
    "nccl",
    "timeline_sampled",
    "trace_diff",
    "modern/a100_full_queue.json.gz",
    "modern/h100_timesformer.json.gz",
    "modern/mi300_owlv2.json.gz",
    "modern/mi300_resnet_act_checkpoint.json.gz",
    "modern/resnet50_2021_workers0.json.gz",
    "modern/sglang_prefill_decode.json.gz",
    "modern/mtia_inference.json.gz",
];

#[test]
fn issue_24_a_loader_stall_is_priced_as_its_removal_measured() {
    let Some(job) = fixture::job("modern/resnet50_2021_workers0.json.gz") else { return };
    let scopes = [steps(&job.traces[0], 17..=20)];
    let report = report(&job, &scopes, &RuleSettings::default());
    let stall = report.findings.iter().find(|finding| finding.rule == "H02").expect("a finding");
    assert!(stall.severity <= Severity::High, "{:?}", stall.severity);
    // The gain is the difference between the median steps 17 to 20 without workers and with four
    // workers.
    let gained = 150_400_000 - 122_500_000;
    let saving = stall.saving.expect("a saving").mid_ns;
    assert!((saving - gained).abs() <= gained / 4, "{saving} against {gained}");
    let harmless = report.findings.iter().find(|finding| finding.rule == "H12");
    let what = harmless.map_or("", |finding| &finding.what);
    assert!(!what.contains("__next__"), "{what}");
}

#[test]
fn issue_24_waits_of_a_full_queue_are_in_the_graph() {
    let Some(job) = fixture::job("modern/a100_full_queue.json.gz") else { return };
    let scopes = [scope(&job.traces[0])];
    let evidence = analyze::JobFacts::new(&scopes).measured().evidence;
    assert!(evidence.queue_waits >= 50, "{evidence:?}");
    assert!(evidence.queue_limited > 1_000, "{evidence:?}");
}

#[test]
fn no_edit_passes_its_bounds() {
    for name in ALL {
        let Some(job) = fixture::job(name) else { return };
        let windows = |edit: &str| after(&job, edit);
        let (none, twice, same) =
            (windows("kernel=~.* x0"), windows("kernel=~.* x2"), windows("kernel=~.* x1"));
        for ((none, twice), same) in none.iter().zip(&twice).zip(&same) {
            assert_eq!(same.saving_ns, 0, "{name}");
            assert!(none.saving_ns >= 0, "{name}: {none:?}");
            assert!(-twice.saving_ns >= none.saving_ns, "{name}: {twice:?} against {none:?}");
        }
    }
}

#[test]
fn issue_24_a_host_that_is_held_back_gains_from_faster_kernels() {
    let window = |name: &str, edit: &str| {
        let job = fixture::job(&format!("modern/{name}.json.gz"))?;
        Some(after(&job, edit).remove(0))
    };
    let Some(owl) = window("mi300_owlv2", "kernel=~.* x0") else { return };
    let saving = owl.saving_pct.expect("a window");
    assert!((15.0..=45.0).contains(&saving), "{saving} %");
    let resnet = window("mi300_resnet_act_checkpoint", "class=communication x0.5").unwrap();
    let saving = resnet.device_saving_pct.expect("a step of the device");
    assert!((20.0..=50.0).contains(&saving), "{saving} %");
}
