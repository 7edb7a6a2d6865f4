use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

#[test]
fn work_counts_for_the_step_in_which_it_runs() {
    let mut trace = Trace::default();
    for (name, start, end) in
        [("ProfilerStep#4", 0, 100), ("ProfilerStep#5", 110, 200), ("ProfilerStep#6", 200, 320)]
    {
        trace.push(&NewSlice::new("user_annotation", name, (1, 1), (start, end)));
    }
    for (name, stream, start, end) in
        [("gemm", 7, 90, 120), ("ncclKernel", 8, 115, 150), ("gemm", 7, 300, 310)]
    {
        trace.push(&NewSlice::new("kernel", name, (0, stream), (start, end)));
    }
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let rows = list_steps(&scope);
    let plain: Vec<_> = rows
        .iter()
        .map(|row| {
            (row.number, row.host_ns, row.period_ns, row.busy_ns, row.exposed_communication_ns)
        })
        .collect();
    let expected = [
        (4, 100, Some(110), Some(10), Some(0)),
        (5, 90, Some(90), Some(40), Some(30)),
        (6, 120, None, Some(10), Some(0)),
    ];
    assert_eq!(plain, expected);
    let summary = summary(0, &rows);
    assert_eq!((summary.count, summary.durations.p50_ns, summary.total_ns), (3, 100, 310));
    assert_eq!(summary.cv_pct, Some(14.782));
}

#[test]
fn a_trace_without_steps_or_devices_has_no_figures() {
    let empty = Trace::default();
    let classifier = Classifier::new(ClassRule::Category);
    let rows = list_steps(&Scope::new(&empty, WindowRule::All, &classifier));
    assert_eq!(rows, []);
    assert_eq!(summary(3, &rows), StepSummary { rank: 3, ..StepSummary::default() });
    let mut host = Trace::default();
    host.push(&NewSlice::new("user_annotation", "ProfilerStep#1", (1, 1), (0, 100)));
    let rows = list_steps(&Scope::new(&host, WindowRule::All, &classifier));
    assert_eq!((rows[0].host_ns, rows[0].busy_ns, rows[0].busy_pct), (100, None, None));
}
