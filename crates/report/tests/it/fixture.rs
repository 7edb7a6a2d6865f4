//! Provides jobs to report on: a small job with hostile names, a large one, and a real one with
//! eight ranks.

use analyze::classify::ClassRule;
use analyze::findings::{self, RuleSettings};
use analyze::{Classifier, Scope, WindowRule};
use report::diff::RecordingSide;
use report::html::{self, PageOrigin};
use report::training::{self, About, RankPlacement, TableShape};
use report::{Options, TimelineSteps, TrainingReport};
use trace::open::ReadRequest;
use trace::store::{Job, LaunchShape, NewSlice, Trace};

/// A name that would run a script if it were inserted as markup.
pub const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>";

/// Renders the page of a job. The title of the job would be bold if it were inserted as markup.
pub fn page(job: &Job, origin: &PageOrigin) -> String {
    titled(job, origin, "a job <b>of tests</b>")
}

/// Renders the page of a job with the given title.
pub fn titled(job: &Job, origin: &PageOrigin, title: &str) -> String {
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::Steps, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    let facts = analyze::JobFacts::new(&scopes);
    let options = Options {
        title: title.to_owned(),
        program: "rowmill test".to_owned(),
        steps: TimelineSteps::Fitting,
        events_max: Options::EVENTS_MAX,
    };
    let found = findings::collect_findings(&facts, &RuleSettings::default()).unwrap();
    let report = report::build_report(&facts, &found, &options).unwrap();
    html::page(&report, origin).unwrap()
}

/// Renders the page that compares two jobs.
pub fn compared(before: &Job, after: &Job) -> String {
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::Steps, &classifier);
    let scopes = [before, after].map(|job| job.traces.iter().map(scope).collect::<Vec<_>>());
    let jobs = [analyze::JobFacts::new(&scopes[0]), analyze::JobFacts::new(&scopes[1])];
    let options = Options {
        title: "before → <b>after</b>".to_owned(),
        program: "rowmill test".to_owned(),
        steps: TimelineSteps::Fitting,
        events_max: Options::EVENTS_MAX,
    };
    let names = [HOSTILE, "after.json"];
    let side = |at: usize| RecordingSide { name: names[at], job: &jobs[at] };
    let found = analyze::diff::compare_jobs(&jobs[0], &jobs[1]);
    let report = report::diff::build_report([side(0), side(1)], &found, &options).unwrap();
    html::diff_page(&report).unwrap()
}

/// Creates two ranks with nested operators, calls, kernels and a collective, all with hostile
/// names.
pub fn small() -> Job {
    let traces = (0..2).map(|rank| ranked(rank, 4, 3)).collect();
    Job { traces }
}

/// Creates two ranks with more than 190,000 events on the timeline.
pub fn large() -> Job {
    let traces = (0..2).map(|rank| ranked(rank, 40, 600)).collect();
    Job { traces }
}

fn ranked(rank: u32, steps: i64, operators: i64) -> Trace {
    let mut trace = Trace { rank, ..Trace::default() };
    let mut id = 0;
    let length = operators * 1000 + 3000;
    for step in 0..steps {
        let at = 1_700_000_000_000_000_000 + step * length;
        let name = format!("ProfilerStep#{step}");
        trace.push(&NewSlice::new("user_annotation", &name, (9, 9), (at, at + length)));
        for operator in 0..operators {
            let at = at + operator * 1000;
            let name = if operator % 3 == 0 { HOSTILE } else { "aten::linear" };
            trace.push(&NewSlice::new("cpu_op", name, (9, 9), (at + 100, at + 900)));
            trace.push(&NewSlice::new("cpu_op", "aten::addmm", (9, 9), (at + 200, at + 700)));
            id += 1;
            let times = (at + 300, at + 400);
            let mut call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (9, 9), times);
            call.correlation = Some(id);
            trace.push(&call);
            let times = (at + 450, at + 500 + 97 * (operator % 7));
            let mut kernel = NewSlice::new("kernel", HOSTILE, (0, 7), times);
            kernel.correlation = Some(id);
            let row = trace.push(&kernel);
            let shape = LaunchShape {
                grid: [80, 1, 1],
                block: [128, 1, 1],
                blocks_per_sm: 0.75,
                occupancy_pct: 25.0,
                ..LaunchShape::default()
            };
            trace.slices.launch_shape.push(row, shape);
        }
        let at = at + operators * 1000;
        id += 1;
        let mut call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (9, 9), (at, at + 50));
        call.correlation = Some(id);
        trace.push(&call);
        let late = i64::from(rank) * 400;
        let times = (at + 100 + late, at + 2500);
        let mut reduce = NewSlice::new("kernel", "ncclKernel_AllReduce", (0, 20), times);
        reduce.correlation = Some(id);
        trace.push(&reduce);
    }
    trace
}

/// Reads the real job with eight ranks. If the fixture is missing, the function prints that the
/// test is skipped.
pub fn dlrm8() -> Option<Job> {
    let paths = vec![testkit::fixture::path("traces/dlrm8/dlrm_kineto.tar.gz")?];
    Some(trace::open::read(&ReadRequest { paths, threads: 2 }).unwrap())
}

/// Creates a training run whose tables have hostile names.
pub fn training() -> TrainingReport {
    let mut lines = String::new();
    for step in (50..=2000u32).step_by(50) {
        let (at, samples) = (f64::from(step), 100 * step);
        let loss = 0.4 + 0.3 * (-at / 300.0).exp() - at * 2e-5;
        let rate = 0.01 * (1.0 - at / 2000.0);
        lines += &format!(
            "{{\"event\":\"interval\",\"step\":{step},\"samples\":{samples},\"loss\":{loss},\
             \"learning_rate\":{rate},\"samples_per_second\":52000.5,\"input_wait_share\":0.01}}\n"
        );
        if step % 250 == 0 {
            let (auc, held) = (0.8 - (at - 1250.0).abs() * 1e-5, 0.42 + (at - 1250.0).abs() * 1e-5);
            lines += &format!(
                "{{\"event\":\"evaluation\",\"step\":{step},\"evaluation\":{{\"samples\":5000,\
                 \"loss\":{held},\"auc\":{auc},\"normalized_entropy\":0.9,\"calibration\":1.01,\
                 \"accuracy\":0.8}}}}\n"
            );
            let tables = serde_json::json!({ HOSTILE: { "rows_changed": step, "row_norm": 0.5 } });
            lines += &format!("{{\"event\":\"tables\",\"step\":{step},\"tables\":{tables}}}\n");
        }
    }
    let table = TableShape { name: HOSTILE.to_owned(), rows: 5000, dim: 16 };
    let (title, program) = ("a run <b>of tests</b>".to_owned(), "rowmill".to_owned());
    let placement = Some(RankPlacement { ranks: 4, groups: 2, hosts: Some(1) });
    let about = About { title, program, tables: vec![table], placement, best_by: None };
    training::build_report(&lines, &about)
}
