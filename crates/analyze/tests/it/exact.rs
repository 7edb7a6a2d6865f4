//! Compares breakdowns with an independent recomputation in integer nanoseconds, stored in
//! `*.exact.json`.

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule, breakdown, overlap};
use serde_json::{Value, json};

use crate::fixture;

/// Every file of expected values, with the trace from which it was computed.
const TRUTH: [(&str, &str); 8] = [
    ("simple_add", "simple_add/benchmark_result_493459_1694039959_trace.json.gz"),
    ("alexnet", "alexnet/benchmark_result_2869224_1695835535_trace.json.gz"),
    ("linear_kineto", "linear/linear_kineto.json.gz"),
    ("nccl", "nccl/nccl_data.json.gz"),
    ("timeline_sampled", "timeline_sampled/sampled_rank-0.json.gz"),
    ("trace_diff_control", "trace_diff/control.json.gz"),
    ("trace_diff_test", "trace_diff/test.json.gz"),
    ("dlrm8", "dlrm8/dlrm_kineto.tar.gz"),
];

#[test]
fn breakdowns_equal_the_exact_figures() {
    let mut compared = 0;
    for (prefix, path) in TRUTH {
        let Some(job) = fixture::job(path) else { return };
        for trace in &job.traces {
            let name = match job.traces.len() {
                1 => prefix.to_owned(),
                _ => format!("{prefix}_rank{}", trace.rank),
            };
            let text = fixture::text(&format!("hta_truth/{name}.exact.json")).unwrap();
            let truth: Value = serde_json::from_str(&text).unwrap();
            let scope = Scope::new(trace, WindowRule::Hta, &Classifier::new(ClassRule::Hta));
            assert_eq!(figures(&breakdown::compute_breakdown(&scope)), truth["exact"], "{name}");
            let count = |key: &str| truth[key].as_u64().unwrap() as usize;
            let kept = count("gpu_events_kept") - count("cuda_sync_events_in_gpu_set");
            assert_eq!(scope.device_rows.len(), kept, "{name}");
            sums_are_exact(&scope);
            compared += 1;
        }
    }
    assert_eq!(compared, 15);
}

/// Returns the figures of a breakdown under the names of the expected values.
fn figures(row: &breakdown::Breakdown) -> Value {
    json!({
        "kernel_time_ns": row.window_ns,
        "busy_ns": row.busy_ns,
        "idle_ns": row.idle_ns,
        "compute_ns": row.compute_ns,
        "comm_ns": row.communication_ns,
        "memory_ns": row.memory_ns,
        "non_compute_ns": row.non_compute_ns,
        "comm_comp_overlap_ns": row.overlap_ns,
        "comm_comp_overlap_pct": row.overlap_pct,
        "exposed_comm_ns": row.exposed_communication_ns,
        "idle_pct": row.idle_pct,
        "compute_pct": row.compute_pct,
        "non_compute_pct": row.non_compute_pct,
    })
}

fn sums_are_exact(scope: &Scope<'_>) {
    let row = breakdown::compute_breakdown(scope);
    let exposed = row.exposed_communication_ns + row.exposed_memory_ns + row.exposed_other_ns;
    assert_eq!(row.compute_ns + exposed + row.idle_ns, row.window_ns);
    let exclusive: i64 =
        overlap::compute_overlap(scope).iter().map(|class| class.exclusive_ns).sum();
    assert_eq!(exclusive, row.busy_ns);
}
