//! Checks that the dependency graphs of real traces reproduce the measured times if they are
//! relaxed without changes.

use analyze::classify::ClassRule;
use analyze::graph;
use analyze::{Classifier, JobFacts, Scope, WindowRule};

use crate::fixture;

/// Every Kineto trace of the fixtures, as a file or an archive of files.
pub const TRACES: [&str; 15] = [
    "alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "dlrm8/dlrm_kineto.tar.gz",
    "linear/linear_kineto.json.gz",
    "nccl/nccl_data.json.gz",
    "odd/backward_thread.json",
    "odd/event_sync_multi_stream.json.gz",
    "odd/event_sync_trace.json.gz",
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "odd/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "odd/rank_non_gpu.json.gz",
    "odd/triton_example.json.gz",
    "simple_add/benchmark_result_493459_1694039959_trace.json.gz",
    "timeline_sampled/sampled_rank-0.json.gz",
    "trace_diff/control.json.gz",
    "trace_diff/test.json.gz",
];

#[test]
fn relaxing_an_unchanged_graph_gives_back_every_measured_time() {
    let classifier = Classifier::new(ClassRule::Category);
    for name in TRACES {
        let Some(job) = fixture::job(name) else { return };
        for rule in [WindowRule::All, WindowRule::Steps] {
            let scopes: Vec<_> =
                job.traces.iter().map(|trace| Scope::new(trace, rule, &classifier)).collect();
            let job = JobFacts::new(&scopes);
            let found = job.measured();
            let relaxed = graph::relax(&found.graph, found.times.origin);
            assert_eq!(relaxed, found.times, "{name}");
            println!(
                "{name} {rule:?}: {} nodes, {} edges, {:?}",
                found.graph.len(),
                found.graph.edges().len(),
                found.evidence
            );
        }
    }
}
