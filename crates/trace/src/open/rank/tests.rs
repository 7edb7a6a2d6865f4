use std::cmp::Ordering;

use super::{assign, from_path, natural};
use crate::store::{Distributed, Loss, Trace};

#[test]
fn ranks_are_read_from_names() {
    for (name, rank) in [
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", Some(34)),
        ("sampled_rank-0.json.gz", Some(0)),
        ("a/rank_3/trace.json", Some(3)),
        ("kineto_rank0.json", Some(0)),
        ("worker2_step_12.1694128201554.pt.trace.json", Some(2)),
        ("dlrm_eg_2.json", Some(2)),
        ("chakra.0.et", Some(0)),
        ("trace_7.json", Some(7)),
        ("11.json", Some(11)),
        ("2024/11.json", Some(11)),
        ("/data/2024/a.json", None),
        ("/data/2024/rank_3/07/a.json", Some(3)),
        ("7.rank_3.json", Some(3)),
        ("rank_non_gpu.json.gz", None),
        ("frank3.json", None),
        ("benchmark_result_2869224_1695835535_trace.json.gz", None),
        ("host_4711.1694128201554.pt.trace.json", None),
        ("linear_et.json.gz", None),
        ("control.json", None),
    ] {
        assert_eq!(from_path(name), rank, "{name}");
    }
}

#[test]
fn numbers_in_names_are_compared_as_numbers() {
    assert_eq!(natural("t_9.json", "t_10.json"), Ordering::Less);
    assert_eq!(natural("t_09", "t_9"), Ordering::Less);
    assert_eq!(natural("a", "ab"), Ordering::Less);
    assert_eq!(natural("b1", "a2"), Ordering::Greater);
    assert_eq!(natural("x", "x"), Ordering::Equal);
}

/// Assigns ranks to files with the given names and claims, and checks the ranks by name and the
/// number of conflicts.
fn check(files: &[(&str, Option<u32>)], expected: &[(&str, u32)], conflicts: u64) {
    let mut traces: Vec<Trace> = files
        .iter()
        .map(|(name, rank)| {
            let mut trace = Trace::default();
            trace.origin.path = name.into();
            let claim = |rank| Distributed { rank: Some(rank), ..Distributed::default() };
            trace.header.distributed = rank.map(claim);
            trace
        })
        .collect();
    assign(&mut traces);
    let found: Vec<(String, u32)> =
        traces.iter().map(|t| (t.origin.path.display().to_string(), t.rank)).collect();
    let expected: Vec<(String, u32)> =
        expected.iter().map(|(n, r)| ((*n).to_owned(), *r)).collect();
    assert_eq!(found, expected);
    let counted: u64 = traces.iter().map(|trace| trace.losses.count_of(Loss::RankConflict)).sum();
    assert_eq!(counted, conflicts);
}

#[test]
fn content_beats_names() {
    check(
        &[("rank_1.json", Some(5)), ("x.json", Some(2))],
        &[("x.json", 2), ("rank_1.json", 5)],
        0,
    );
    check(
        &[("rank_1.json", None), ("rank_0.json", None)],
        &[("rank_0.json", 0), ("rank_1.json", 1)],
        0,
    );
    check(&[("x.json", None)], &[("x.json", 0)], 0);
}

#[test]
fn distinct_names_decide_if_all_contents_claim_one_rank() {
    check(
        &[("worker3.json", Some(0)), ("worker1.json", Some(0))],
        &[("worker1.json", 1), ("worker3.json", 3)],
        2,
    );
}

#[test]
fn unclaimed_traces_get_the_smallest_free_ranks() {
    check(
        &[("c.json", Some(0)), ("b.json", Some(0)), ("a.json", Some(2)), ("d.json", None)],
        &[("b.json", 0), ("c.json", 1), ("a.json", 2), ("d.json", 3)],
        2,
    );
    check(&[("t10.json", None), ("t9.json", None)], &[("t9.json", 0), ("t10.json", 1)], 2);
}
