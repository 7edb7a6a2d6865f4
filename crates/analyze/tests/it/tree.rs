//! Checks the operator trees of real threads. The expected values come from an 8-rank DLRM job
//! whose execution traces name the parent of every operator.

use analyze::tree;
use trace::store::{EventKind, Job};

use crate::fixture::job;

/// Reads the traces of a DLRM job with 8 ranks.
pub fn dlrm8() -> Option<Job> {
    let job = job("dlrm8/dlrm_kineto.tar.gz");
    assert!(job.as_ref().is_none_or(|job| job.traces.len() == 8));
    job
}

#[test]
fn dlrm8_nests_like_its_execution_traces() {
    let Some(job) = dlrm8() else { return };
    for trace in &job.traces {
        let tree = tree::build(trace);
        assert_eq!(tree.clipped, [], "rank {}", trace.rank);
        // On ranks 4 and 5, two operators start in the same microsecond, so one looks like the last
        // child of its predecessor.
        let off = u32::from(trace.rank == 4 || trace.rank == 5);
        let top = tree.top_operators(trace);
        let figures: Vec<(u32, u32)> = tree
            .threads
            .iter()
            .map(|thread| {
                let rows = tree.rows_of(thread);
                let host = rows.iter().filter(|row| !trace.kind(**row).is_call());
                let thread_roots = |row: &&u32| trace.slices.track[**row as usize] == thread.track;
                let operators = top.iter().filter(thread_roots).count() as u32;
                (host.map(|row| tree.depth(*row)).sum(), operators)
            })
            .collect();
        let mut sorted = figures;
        sorted.sort_unstable();
        assert_eq!(sorted, [(2182, 98), (5096 + off, 386 - off)], "rank {}", trace.rank);
        assert_eq!(top.len() as u32, 484 - off);
    }
}

#[test]
fn dlrm8_rank_0_has_391_and_101_roots() {
    let Some(job) = dlrm8() else { return };
    let trace = &job.traces[0];
    let tree = tree::build(trace);
    let top = tree.top_rows(trace);
    let count = |thread: &tree::TreeThread, name: &str| {
        let thread_roots = |row: u32| trace.slices.track[row as usize] == thread.track;
        let is_named = |row: u32| name.is_empty() || trace.name(row) == name;
        top.iter().filter(|row| thread_roots(**row) && is_named(**row)).count()
    };
    let names = ["", "cudaStreamWaitEvent", "cudaDeviceSynchronize"];
    let mut counts: Vec<_> =
        tree.threads.iter().map(|thread| names.map(|name| count(thread, name))).collect();
    counts.sort_unstable();
    assert_eq!(counts, [[101, 3, 0], [391, 4, 1]]);
}

#[test]
fn no_real_trace_is_nested_badly_without_being_counted() {
    let clipped = [
        ("linear/linear_kineto.json.gz", 0),
        ("nccl/nccl_data.json.gz", 0),
        ("trace_diff/control.json.gz", 0),
        ("trace_diff/test.json.gz", 0),
        ("timeline_sampled/sampled_rank-0.json.gz", 0),
        ("odd/rank_non_gpu.json.gz", 0),
    ];
    for (path, expected) in clipped {
        let Some(job) = job(path) else { return };
        let trace = &job.traces[0];
        let tree = tree::build(trace);
        let is_host = |row: &u32| {
            let kind = trace.kind(*row);
            kind.is_call() || matches!(kind, EventKind::Operator | EventKind::Annotation)
        };
        assert_eq!(tree.nodes.len(), trace.rows().filter(is_host).count(), "{path}");
        assert_eq!(tree.clipped.len(), expected, "{path}: {:?}", tree.clipped);
    }
}
