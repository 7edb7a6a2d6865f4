use trace::store::{NewSlice, Trace};

use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::job::JobFacts;
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;
use crate::graph::what_if;

/// Builds host steps of 100 ns that launch one kernel of `kernel` ns each, so that longer kernels
/// lag behind more and more.
fn trace(steps: i64, kernel: i64) -> Trace {
    let mut trace = Trace::default();
    let mut free = 0;
    for step in 0..steps {
        let at = 100 * step;
        let name = format!("ProfilerStep#{step}");
        trace.push(&NewSlice::new("user_annotation", &name, (9, 9), (at, at + 100)));
        let call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (9, 9), (at + 10, at + 12));
        let correlation = Some(step as u64 + 1);
        trace.push(&NewSlice { correlation, ..call });
        let start = free.max(at + 20);
        free = start + kernel;
        let work = NewSlice::new("kernel", "gemm", (0, 7), (start, free));
        trace.push(&NewSlice { correlation, ..work });
    }
    // The first step is not whole, because work launched earlier runs among its own.
    trace.push(&NewSlice::new("kernel", "gemm", (0, 8), (25, 26)));
    trace
}

fn scope(trace: &Trace) -> Scope<'_> {
    Scope::new(trace, WindowRule::Steps, &Classifier::new(ClassRule::Category))
}

fn after(trace: &Trace, edit: &str) -> (i64, i64) {
    let scopes = [scope(trace)];
    let found =
        what_if::answer_questions(&JobFacts::new(&scopes), &[what_if::parse(edit).unwrap()]);
    (found.windows[0].window_ns, found.windows[0].new_window_ns)
}

#[test]
fn a_device_that_lags_behind_has_steps_of_its_own() {
    let trace = trace(5, 130);
    let scope = scope(&trace);
    assert_eq!((scope.window.start, scope.window.end), (100, 500));
    // The kernel of step 0 ends at 150, and the kernel of the last step ends at 670.
    assert_eq!((scope.device_span, scope.length_ns()), (Some((150, 670)), 520));
    assert_eq!(scope.late_work.len(), 1);
}

#[test]
fn a_device_without_lag_has_the_steps_of_its_host() {
    let trace = trace(5, 80);
    let scope = scope(&trace);
    assert_eq!((scope.device_span, scope.length_ns()), (None, 400));
    assert!(scope.late_work.is_empty());
}

#[test]
fn faster_work_on_a_lagging_device_shortens_its_steps_to_the_hosts() {
    let trace = trace(5, 130);
    assert_eq!(after(&trace, "kernel=gemm x1"), (520, 520));
    assert_eq!(after(&trace, "kernel=gemm x2"), (520, 1040));
    assert_eq!(after(&trace, "kernel=gemm x0.5"), (520, 400));
}

#[test]
fn each_step_has_one_of_the_host_and_one_of_the_device() {
    let device = |kernel: i64| {
        let trace = trace(5, kernel);
        let rows = crate::tables::steps::list_steps(&scope(&trace));
        rows.iter().map(|row| (row.host_ns, row.device_ns)).collect::<Vec<_>>()
    };
    // The first device step is unknown, because its start was not recorded. The kernels of 130 ns
    // end at 150, 280, 410 and so on.
    let lags =
        [(100, None), (100, Some(130)), (100, Some(130)), (100, Some(130)), (100, Some(130))];
    assert_eq!(device(130), lags);
    assert_eq!(device(80), [(100, None); 5]);
}

#[test]
fn a_what_if_shows_the_host_and_the_device_beside_each_other() {
    let trace = trace(5, 130);
    let scopes = [scope(&trace)];
    let found = what_if::answer_questions(
        &JobFacts::new(&scopes),
        &[what_if::parse("kernel=gemm x0.5").unwrap()],
    );
    // Kernels of 65 ns start when they are launched, at 20, 120 and so on. The device keeps up with
    // the host, so its steps end with the host's steps. The device steps begin when the kernel of
    // step 0 ends.
    let rank = &found.windows[0];
    assert_eq!((rank.host_ns, rank.new_host_ns), (400, 400));
    assert_eq!((rank.device_ns, rank.new_device_ns), (Some(520), Some(500 - 125)));
    assert_eq!(rank.device_saving_pct, Some(27.8846));
    let job = &found.windows[1];
    assert_eq!((job.device_ns, job.new_device_ns), (Some(520), Some(375)));
}

#[test]
fn issue_24_earlier_work_delimits_the_first_device_step() {
    let mut trace = trace(3, 130);
    // The first kernel waits for this earlier work, as it would on one stream.
    let last = trace.rows().last().unwrap() as usize;
    (trace.slices.start[last], trace.slices.duration[last]) = (2, 18);
    let rows = crate::tables::steps::list_steps(&scope(&trace));
    let found: Vec<_> = rows.iter().map(|row| (row.is_whole, row.device_ns)).collect();
    assert_eq!(found, [(true, Some(130)); 3]);
    assert_eq!(scope(&trace).device_span, Some((20, 410)));
}
