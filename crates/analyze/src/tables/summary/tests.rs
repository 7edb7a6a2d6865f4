use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::scope::Scope;

fn summary(trace: &Trace) -> Summary {
    let scope = Scope::new(trace, WindowRule::Steps, &Classifier::new(ClassRule::Category));
    summarize_job(&JobFacts::new(&[scope]), 1)
}

#[test]
fn an_empty_trace_has_an_empty_summary() {
    let nothing = summary(&Trace::default());
    assert_eq!(nothing.job.era, Era::Unknown);
    assert_eq!((nothing.job.busy_pct, nothing.job.step_p50_ns), (None, None));
    assert_eq!((nothing.kernels.len(), nothing.operators.len()), (0, 0));
    assert_eq!(summarize_job(&JobFacts::new(&[]), 5).job.rank_count, 0);
}

#[test]
fn parts_add_up_to_the_window_and_the_top_is_named() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "aten::mm", (1, 1), (0, 30_000)));
    trace.push(&NewSlice::new("cpu_op", "aten::add", (1, 1), (40_000, 45_000)));
    let mut launch = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (1, 1), (5_000, 9_000));
    launch.correlation = Some(4);
    trace.push(&launch);
    let mut kernel = NewSlice::new("kernel", "void gemm<float>(int)", (0, 7), (10_000, 60_000));
    kernel.correlation = Some(4);
    trace.push(&kernel);
    trace.push(&NewSlice::new("kernel", "ncclKernel_AllReduce", (0, 8), (50_000, 100_000)));
    let found = summary(&trace);
    assert_eq!(found.job.era, Era::KinetoMicroseconds);
    let parts: Vec<_> = found.parts.iter().map(|part| (part.part, part.time_ns)).collect();
    let expected = [
        ("compute", 50_000),
        ("exposed_communication", 40_000),
        ("exposed_memory", 0),
        ("exposed_other", 0),
        ("idle", 10_000),
    ];
    assert_eq!(parts, expected);
    assert_eq!(parts.iter().map(|(_, ns)| ns).sum::<i64>(), found.job.window_ns);
    assert_eq!((found.kernels.len(), &*found.kernels[0].name), (1, "gemm"));
    assert_eq!((&*found.operators[0].name, found.operators[0].device_ns), ("aten::mm", 50_000));
    assert_eq!(found.job.attributed_pct, Some(50.0));
    assert_eq!((found.ranks[0].thread_count, found.ranks[0].stream_count), (1, 2));
}
