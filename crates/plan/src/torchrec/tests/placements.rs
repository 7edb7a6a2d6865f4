//! The expectations of TorchRec's tests of its partitioners and proposers.

use super::{option, problem, table};
use crate::torchrec::error::Unplaced;
use crate::torchrec::option::{ShardingOption, list_options};
use crate::torchrec::partition::{PlacementOrder, Room, partition};
use crate::torchrec::perf::ShardPerf;
use crate::torchrec::problem::{TorchrecProblem, TorchrecTable};
use crate::torchrec::proposals::for_each_proposal;
use crate::torchrec::sharding::ShardingType::{self, *};

/// Options of tables, one type for each, whose shards all have the given cost.
fn options(
    problem: &TorchrecProblem,
    types: &[ShardingType],
    milliseconds: f64,
) -> Vec<ShardingOption> {
    let mut options: Vec<ShardingOption> =
        types.iter().enumerate().map(|(id, &sharding)| option(problem, id, sharding)).collect();
    for shard in options.iter_mut().flat_map(|option| &mut option.shards) {
        shard.perf = ShardPerf { forward_compute: milliseconds, ..ShardPerf::default() };
        shard.bytes = 1000;
    }
    options
}

fn place(
    problem: &TorchrecProblem,
    options: &[ShardingOption],
    order: PlacementOrder,
    bytes_per_rank: u64,
) -> Result<Vec<Vec<u32>>, Unplaced> {
    let options: Vec<&ShardingOption> = options.iter().collect();
    let room =
        Room { tables: &problem.tables, topology: &problem.setting.topology, bytes_per_rank };
    partition(&options, order, room)
}

fn check_ranks(
    source: &str,
    problem: &TorchrecProblem,
    options: &[ShardingOption],
    expected: &[Vec<u32>],
) {
    let ranks = place(problem, options, PlacementOrder::LargestMemory, 32 << 30);
    assert_eq!(ranks.as_deref(), Ok(expected), "test_partitioners.py, {source}");
}

#[test]
fn tables_go_to_the_ranks_of_torchrecs_tests() {
    let tables = (0..4).map(|i| table(100 + i, 4 * (10 + i as usize))).collect();
    let problem = problem(tables, 2, 2);
    let mut options = options(&problem, &[TableWise; 4], 100.0);
    let source = "TestGreedyPerfPartitioner.test_tw_balanced_perf_device";
    check_ranks(source, &problem, &options, &[vec![0], vec![1], vec![0], vec![1]]);
    options[0].shards[0].perf.forward_compute = 300.0;
    let source = "TestGreedyPerfPartitioner.test_tw_unbalanced_perf_device";
    check_ranks(source, &problem, &options, &[vec![0], vec![1], vec![1], vec![1]]);
}

#[test]
fn row_wise_tables_go_to_the_ranks_of_torchrecs_tests() {
    let tables = || (0..4).map(|i| table(64, 4 * (10 + i))).collect();
    let four = problem(tables(), 4, 4);
    let source = "TestGreedyPerfPartitioner.test_rw_unbalanced_perf_uniform";
    let all = vec![vec![0, 1, 2, 3]; 4];
    check_ranks(source, &four, &options(&four, &[RowWise; 4], 100.0), &all);

    let hosts = problem(tables(), 16, 8);
    let source = "TestGreedyPerfPartitioner.test_tw_balanced_perf_host";
    let (first, second): (Vec<u32>, Vec<u32>) = ((0..8).collect(), (8..16).collect());
    let alternate = [first.clone(), second.clone(), first, second];
    check_ranks(source, &hosts, &options(&hosts, &[TableRowWise; 4], 100.0), &alternate);
}

/// Tables of 80, 160, 240 and 320 columns on two hosts of eight ranks.
fn wide(rows: u64, least_columns: [Option<usize>; 4]) -> TorchrecProblem {
    let wide = |(i, least_columns)| TorchrecTable { least_columns, ..table(rows, 80 * (i + 1)) };
    problem(least_columns.into_iter().enumerate().map(wide).collect(), 16, 8)
}

#[test]
fn column_wise_tables_go_to_the_hosts_of_torchrecs_tests() {
    let problem = wide(64, [Some(8), Some(40), Some(20), Some(32)]);
    let source = "TestGreedyPerfPartitioner.test_twcw_unbalanced_perf_host";
    let expected = [
        vec![8, 9, 10, 11, 12, 13, 14, 15, 8, 9],
        vec![4, 5, 6, 7],
        vec![0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3],
        vec![10, 11, 12, 13, 14, 15, 8, 9, 10, 11],
    ];
    check_ranks(source, &problem, &options(&problem, &[TableColumnWise; 4], 100.0), &expected);

    let problem = wide(128, [None, Some(32), Some(40), None]);
    let types = [TableRowWise, TableColumnWise, TableColumnWise, TableRowWise];
    let source = "TestGreedyPerfPartitioner.test_twrw_and_twcw_perf_host";
    let (first, second): (Vec<u32>, Vec<u32>) = ((0..8).collect(), (8..16).collect());
    let expected = [first, vec![8, 9, 10, 11, 12], vec![0, 1, 2, 3, 4, 5], second];
    check_ranks(source, &problem, &options(&problem, &types, 100.0), &expected);
}

#[test]
fn tables_with_long_times_come_first_when_memory_is_balanced() {
    let tables = (0..3).map(|i| table(100 + i, 4 * (10 + i as usize))).collect();
    let problem = problem(tables, 2, 2);
    let mut options = options(&problem, &[TableWise; 3], 0.0);
    for (i, option) in options.iter_mut().enumerate() {
        option.shards[0].perf.forward_compute = 40.0 * (i + 1) as f64;
        option.shards[0].bytes = (1500 - 500 * i as u64) << 20;
    }
    for order in [PlacementOrder::LargestMemory, PlacementOrder::LongestTime] {
        let ranks = place(&problem, &options, order, 2000 << 20);
        let source = "test_partitioners.py, \
                      TestMemoryBalancedPartitioner.test_different_sharding_plan";
        assert_eq!(ranks, Ok(vec![vec![0], vec![1], vec![0]]), "{source}, {order:?}");
    }
    let unplaced =
        place(&problem, &options, PlacementOrder::LargestMemory, 1499 << 20).unwrap_err();
    let text = "a table_wise shard of table \"100x40\": expected a rank with 1572864000 free \
                bytes, got at most 1571815424";
    assert_eq!(unplaced.to_string(), text);
}

/// Lists the sharding types of each proposal.
fn proposed(problem: &TorchrecProblem) -> Vec<Vec<ShardingType>> {
    let space = list_options(problem).expect("options");
    let mut proposed = Vec::new();
    for_each_proposal(&space, |choice| {
        let types = space.iter().zip(choice);
        proposed.push(types.map(|(options, &i)| options[usize::from(i)].sharding).collect());
    });
    proposed
}

#[test]
fn greedy_proposals_are_those_of_torchrecs_test() {
    // Enough tables that the search of all combinations is skipped.
    let all = Some(ShardingType::ALL.to_vec());
    let tables: Vec<_> =
        (0..5).map(|_| TorchrecTable { allowed: all.clone(), ..table(100, 10) }).collect();
    let types = proposed(&problem(tables, 2, 2));
    let source = "test_proposers.py, TestProposers.test_greedy_two_table";
    for (proposal, expected) in [RowWise, TableRowWise, GridShard, DataParallel].iter().enumerate()
    {
        // The first of equally large tables moves on until its option needs less memory.
        assert_eq!(types[proposal], [*expected, RowWise, RowWise, RowWise, RowWise], "{source}");
    }
    let next = [DataParallel, TableRowWise, RowWise, RowWise, RowWise];
    assert_eq!(types[4], next, "{source}");
}

#[test]
fn uniform_proposals_are_those_of_torchrecs_test() {
    let allowed = Some(vec![DataParallel, TableWise, RowWise, TableRowWise]);
    let tables = (1..7).map(|i| TorchrecTable { allowed: allowed.clone(), ..table(100 * i, 10) });
    let types = proposed(&problem(tables.collect(), 2, 2));
    let source = "test_proposers.py, TestProposers.test_uniform_three_table";
    for sharding in [DataParallel, TableWise, RowWise, TableRowWise] {
        assert!(types.contains(&vec![sharding; 6]), "{source}, {}", sharding.name());
    }
}
