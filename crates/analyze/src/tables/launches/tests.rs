use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::interval::Interval;
use crate::facts::window::WindowRule;

fn row(
    trace: &mut Trace,
    category: &str,
    name: &str,
    track: i64,
    span: Interval,
    correlation: u64,
) {
    let slice = NewSlice::new(category, name, (track, track), span);
    trace.push(&NewSlice { correlation: Some(correlation), ..slice });
}

fn example() -> Trace {
    let mut trace = Trace::default();
    // The fixture contains a launch of one kernel, a graph of three rows, work from before the
    // recording, a launch whose work is lost, and work that starts before its call.
    row(&mut trace, "cuda_driver", "cuLaunchKernel", 9, (100, 110), 1);
    row(&mut trace, "kernel", "gemm", 0, (115, 140), 1);
    row(&mut trace, "cuda_runtime", "cudaGraphLaunch", 9, (120, 150), 2);
    row(&mut trace, "kernel", "b", 0, (170, 180), 2);
    row(&mut trace, "kernel", "a", 0, (160, 165), 2);
    row(&mut trace, "gpu_memcpy", "Memcpy DtoD", 0, (190, 200), 2);
    row(&mut trace, "kernel", "gemm", 0, (90, 95), 77);
    row(&mut trace, "cuda_runtime", "cudaMemcpyAsync", 9, (210, 220), 78);
    row(&mut trace, "cuda_runtime", "cudaStreamSynchronize", 9, (222, 223), 79);
    row(&mut trace, "cuda_runtime", "cudaLaunchKernel", 9, (240, 250), 3);
    row(&mut trace, "kernel", "gemm", 0, (233, 234), 3);
    trace
}

#[test]
fn launches_are_counted_with_and_without_their_work() {
    let trace = example();
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let settings = LaunchSettings { slow_call_ns: 20, late_ns: 8 };
    let rows: Vec<_> = list_launches(&scope, &settings).collect();
    let seen: Vec<_> = rows.iter().map(|row| (row.name, row.delay_ns, row.is_first)).collect();
    let expected = [
        ("gemm", 5, true),
        ("a", 10, true),
        ("b", 20, false),
        ("Memcpy DtoD", 40, false),
        ("gemm", -17, true),
    ];
    assert_eq!(seen, expected);
    let expected = LaunchSummary {
        rank: 0,
        call_count: 3,
        work_count: 5,
        graph_call_count: 1,
        graph_work_count: 3,
        work_without_call_count: 1,
        call_without_work_count: 1,
        early_count: 1,
        before_call_count: 1,
        before_call_ns_max: 7,
        short_count: 1,
        slow_call_count: 1,
        late_count: 1,
        call_ns: 50,
        device_ns: 51,
        delay_ns: 15,
    };
    assert_eq!(summary(&scope, rows), expected);
}

#[test]
fn distributions_count_a_call_once() {
    let trace = example();
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let rows: Vec<_> = list_launches(&scope, &LaunchSettings::USUAL).collect();
    let by = |grouped_by| distributions(&rows, grouped_by);
    let all = [by(GroupedBy::Call), by(GroupedBy::Work)].concat();
    let row = |name: &str, quantity: Quantity| {
        let row = all.iter().find(|row| row.name == name && row.quantity == quantity).unwrap();
        (row.count, row.total_ns, row.min_ns, row.p50_ns, row.p95_ns)
    };
    assert_eq!(row("cudaGraphLaunch", Quantity::Call), (1, 30, 30, 30, 30));
    assert_eq!(row("cudaGraphLaunch", Quantity::Device), (3, 25, 5, 10, 10));
    assert_eq!(row("gemm", Quantity::Delay), (2, -12, -17, -6, 5));
    assert_eq!(row("b", Quantity::Delay), (0, 0, 0, 0, 0));
    assert_eq!(all.len(), 3 * (3 + 4));
}
