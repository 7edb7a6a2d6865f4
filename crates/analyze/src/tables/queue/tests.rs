use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

/// Builds calls and their work from (start of the call, starts of the work), each with a
/// correlation id of its own.
fn trace(launches: &[(i64, &[i64])]) -> Trace {
    let mut trace = Trace::default();
    for (correlation, (call, work)) in (1..).zip(launches) {
        let mut push = |category: &str, track: (i64, i64), start: i64| {
            let slice = NewSlice::new(category, "x", track, (start, start + 1));
            trace.push(&NewSlice { correlation: Some(correlation), ..slice });
        };
        push("cuda_runtime", (9, 9), *call);
        work.iter().for_each(|start| push("kernel", (0, 7), *start));
    }
    trace
}

fn points(trace: &Trace) -> (StreamQueue, Vec<(i64, u32)>) {
    let scope = Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let series = series(&scope).iter().map(|point| (point.time_ns, point.length)).collect();
    (measure_queues(&scope).remove(0), series)
}

#[test]
fn lengths_are_weighted_by_time() {
    let (queue, series) = points(&trace(&[(0, &[40]), (10, &[60]), (20, &[99])]));
    assert_eq!(series, [(0, 1), (10, 2), (20, 3), (40, 2), (60, 1), (99, 0)]);
    assert_eq!((queue.waiting_ns, queue.length_mean), (169, 1.69));
    assert_eq!((queue.length_min, queue.length_p50, queue.length_p95), (0, 1, 3));
    assert_eq!((queue.length_max, queue.launch_count, queue.full_ns), (3, 3, 0));
}

#[test]
fn a_graph_waits_once_until_its_first_row() {
    let (queue, series) = points(&trace(&[(0, &[30, 20, 40])]));
    assert_eq!(series, [(0, 1), (20, 0)]);
    assert_eq!(queue.launch_count, 1);
}

#[test]
fn work_before_its_call_never_waits() {
    let (queue, series) = points(&trace(&[(0, &[10]), (50, &[45]), (60, &[60])]));
    assert_eq!(series, [(0, 1), (10, 0)]);
    assert_eq!((queue.before_call_count, queue.launch_count, queue.length_min), (1, 1, 0));
}

#[test]
fn a_full_queue_is_timed() {
    let work = [5000];
    let launches: Vec<(i64, &[i64])> = (0..1030).map(|at| (at, &work[..])).collect();
    let (queue, _) = points(&trace(&launches));
    assert_eq!((queue.length_max, queue.full_ns), (1030, 5000 - 1023));
}
