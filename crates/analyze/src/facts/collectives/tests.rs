use trace::store::{Collective, NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

/// Builds the trace of a rank whose kernels are all-reduces, given as (elements, sequence, start,
/// end).
fn rank(rank: u32, kernels: &[(u64, Option<u64>, i64, i64)]) -> Trace {
    let mut trace = Trace { rank, ..Trace::default() };
    for &(elements, sequence, start, end) in kernels {
        let row = trace.push(&NewSlice {
            stream: Some(3),
            device: Some(0),
            ..NewSlice::new("kernel", "ncclDevKernel_AllReduce_Sum_f32(x)", (0, 3), (start, end))
        });
        let collective = Collective {
            name: trace.strings.intern("allreduce"),
            dtype: trace.strings.intern("Float"),
            elements_in: Some(elements),
            group: trace.strings.intern("0"),
            group_size: Some(3),
            sequence,
            ..Collective::default()
        };
        trace.slices.collective.push(row, collective);
    }
    trace
}

fn matched(traces: &[Trace]) -> Collectives {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<_> =
        traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    match_collectives(&scopes)
}

#[test]
fn the_last_rank_waits_for_none_and_the_transfer_is_the_shortest_kernel() {
    let job = [
        rank(0, &[(250, None, 100, 210)]),
        rank(1, &[(250, None, 180, 212)]),
        rank(2, &[(250, None, 200, 211)]),
    ];
    let found = matched(&job);
    let one = &found.matched[0];
    assert_eq!(one.name, "ncclDevKernel_AllReduce_Sum_f32");
    assert_eq!((one.last_rank, one.late_by_ns, one.transfer_ns), (Some(2), 20, 11));
    assert_eq!((one.arrival_spread_ns, one.end_spread_ns, one.bytes), (100, 2, Some(1000)));
    let waits: Vec<_> = one.participants.iter().map(|rank| rank.wait_ns).collect();
    assert_eq!(waits, [100, 20, 0]);
    // The bus factor of an all-reduce in a group of three ranks is 2(n−1)/n = 4/3.
    assert_eq!(one.bus_bandwidth_gb_per_s, Some(121.2121));
    assert_eq!(found.rows().len(), 3);
}

#[test]
fn sequences_match_where_recordings_began_at_different_ones() {
    let job = [
        rank(0, &[(1, Some(4), 0, 9), (1, Some(5), 10, 20)]),
        rank(1, &[(1, Some(5), 12, 20), (1, Some(6), 30, 40)]),
    ];
    let found = matched(&job);
    assert_eq!(found.matched.len(), 1);
    assert_eq!((found.matched[0].sequence, found.matched[0].last_rank), (Some(5), Some(1)));
    let lost: Vec<_> = found.unmatched.iter().map(|u| (u.rank, u.reason, u.count)).collect();
    assert_eq!(lost, [(0, Reason::MissingOnRank, 1), (1, Reason::MissingOnRank, 1)]);
}

#[test]
fn sizes_match_where_the_order_differs() {
    let job = [
        rank(0, &[(10, None, 0, 9), (20, None, 10, 20)]),
        rank(1, &[(20, None, 2, 20), (10, None, 22, 30)]),
    ];
    let sizes: Vec<_> =
        matched(&job).rows().iter().map(|row| (row.index, row.rank, row.bytes)).collect();
    assert_eq!(sizes, [(0, 0, Some(80)), (0, 1, Some(80)), (1, 0, Some(40)), (1, 1, Some(40))]);
}

#[test]
fn one_rank_lists_its_collectives_without_a_last_rank() {
    let found = matched(&[rank(7, &[(10, None, 5, 9)])]);
    let one = &found.matched[0];
    assert_eq!((one.last_rank, one.late_by_ns, one.transfer_ns), (None, 0, 4));
    assert_eq!((one.ranks_seen, one.group_size), (1, 3));
    assert_eq!(matched(&[]), Collectives::default());
}

#[test]
fn ties_for_the_last_name_the_lowest_rank() {
    let found = matched(&[rank(3, &[(1, None, 5, 9)]), rank(1, &[(1, None, 5, 9)])]);
    assert_eq!((found.matched[0].last_rank, found.matched[0].late_by_ns), (Some(1), 0));
}

#[test]
fn collective_operations_are_parsed_from_names() {
    let check = |name, kernel, expected| assert_eq!(message::operation(name, kernel), expected);
    check(Some("_allgather_base"), "", CollectiveOperation::AllGather);
    check(Some("all_to_allv"), "ncclKernel_SendRecv", CollectiveOperation::AllToAll);
    check(Some("send"), "ncclKernel_SendRecv", CollectiveOperation::PointToPoint);
    check(None, "ncclKernel_SendRecv_RING_SIMPLE", CollectiveOperation::SendReceive);
    check(None, "ncclDevKernel_ReduceScatter_Sum_bf16", CollectiveOperation::ReduceScatter);
    check(None, "ncclDevKernel_Reduce_Sum_bf16", CollectiveOperation::Reduce);
    check(None, "void deep_ep::dispatch", CollectiveOperation::Other);
}
