//! The expectations of TorchRec's tests of times, shard sizes and memory. Each check names the file
//! and the test of TorchRec, below `torchrec/distributed/planner/tests`, that has its numbers.

use schema::Optimizer;

use super::{option, problem, table};
use crate::torchrec::perf::ShardPerf;
use crate::torchrec::problem::{TorchrecProblem, TorchrecTable};
use crate::torchrec::sharding::ShardingType::{self, *};

/// Times in the order of TorchRec's `Perf`: forward compute and exchange, backward compute and
/// exchange, exchange of ids.
fn perf(times: [f64; 5]) -> ShardPerf {
    let [forward_compute, forward_exchange, backward_compute, backward_exchange, input_exchange] =
        times;
    ShardPerf {
        forward_compute,
        forward_exchange,
        backward_compute,
        backward_exchange,
        input_exchange,
    }
}

fn check_perf(source: &str, problem: &TorchrecProblem, sharding: &[ShardingType], times: [f64; 5]) {
    for &sharding in sharding {
        for shard in option(problem, 0, sharding).shards {
            assert_eq!(shard.perf, perf(times), "{source}, {}", sharding.name());
        }
    }
}

const WHOLE_ROWS: [ShardingType; 3] = [TableWise, ColumnWise, TableColumnWise];
const SPLIT_ROWS: [ShardingType; 3] = [RowWise, TableRowWise, GridShard];

#[test]
fn times_of_a_table_are_torchrecs() {
    let problem = problem(vec![table(100, 10)], 2, 2);
    let source = "test_shard_estimators.py, TestEmbeddingPerfEstimator.test_1_table_perf";
    let times = [9.356002212235228e-05, 0.0, 0.00018712004424470456, 0.000225593945387348, 0.0];
    check_perf(source, &problem, &[DataParallel], times);
    let (exchange, ids) = (6.357828776041667e-05, 1.2715657552083334e-05);
    let times = [0.000327460077428233, exchange, 0.000654920154856466, exchange, ids];
    check_perf(source, &problem, &WHOLE_ROWS, times);
    let backward = [0.0001360873049052397, 0.00016798276699240525];
    let times = [6.804365245261984e-05, exchange, backward[0], backward[1], ids];
    check_perf(source, &problem, &SPLIT_ROWS, times);
}

#[test]
fn times_of_a_weighted_table_are_torchrecs() {
    let weighted = TorchrecTable { is_weighted: true, ..table(100, 10) };
    let problem = problem(vec![weighted], 2, 2);
    let source = "test_shard_estimators.py, TestEmbeddingPerfEstimator.test_1_weighted_table_perf";
    let times = [0.00010206547867892977, 0.0, 0.00031640298390468225, 0.000225593945387348, 0.0];
    check_perf(source, &problem, &[DataParallel], times);
    let (exchange, ids) = (6.357828776041667e-05, 1.2715657552083334e-05);
    let times = [0.00034234462640224357, exchange, 0.001061268341846955, exchange, ids];
    check_perf(source, &problem, &WHOLE_ROWS, times);
    let backward = [0.0002241187802658166, 0.00016798276699240525];
    let times = [7.229638073090858e-05, exchange, backward[0], backward[1], ids];
    check_perf(source, &problem, &SPLIT_ROWS, times);
}

#[test]
fn times_on_other_links_are_torchrecs() {
    let mut problem = problem(vec![table(100, 10)], 2, 2);
    let gib = 1024f64.powi(3);
    problem.setting.topology.bandwidth_within_hosts = 300.0 * gib / 1000.0;
    problem.setting.topology.bandwidth_between_hosts = 40.0 * gib / 1000.0;
    let source = "test_shard_estimators.py, \
                  TestEmbeddingPerfEstimatorWithGeneralizedComms.test_1_table_perf";
    let times = [9.356002212235228e-05, 0.0, 0.00018712004424470456, 0.00012314846217964537, 0.0];
    check_perf(source, &problem, &[DataParallel], times);
    let (exchange, ids) = (6.357828776041667e-05 * 2.0, 2.5431315104166668e-05);
    let times = [0.000327460077428233, exchange, 0.000654920154856466, exchange, ids];
    check_perf(source, &problem, &WHOLE_ROWS, times);
    let backward = [0.0001360873049052397, 0.00016798276699240525 + 6.357828776041667e-05];
    let times = [6.804365245261984e-05, exchange, backward[0], backward[1], ids];
    check_perf(source, &problem, &SPLIT_ROWS, times);
}

#[test]
fn times_of_a_table_without_pooling_are_torchrecs() {
    let sequence = TorchrecTable { is_pooled: false, ..table(256, 32) };
    let problem = problem(vec![sequence], 2, 2);
    let source = "test_shard_estimators.py, TestEmbeddingPerfEstimator.test_sequence_2_table_perf";
    for (sharding, total) in [
        (DataParallel, 0.0026901057997143255),
        (TableWise, 0.001880471390093715),
        (ColumnWise, 0.001880471390093715),
        (RowWise, 0.0007915177871551004),
    ] {
        for shard in option(&problem, 0, sharding).shards {
            assert_eq!(shard.perf.total(), total, "{source}, {}", sharding.name());
        }
    }
}

#[test]
fn optimizer_states_count_as_in_torchrec() {
    let source = "test_shard_estimators.py, \
                  TestEmbeddingStorageEstimator.test_calculate_storage_specific_sizes";
    for (optimizer, bytes) in [(Some(Optimizer::Sgd), 50), (Some(Optimizer::Adam), 150), (None, 50)]
    {
        let mut problem = problem(vec![table(10, 5)], 2, 2);
        problem.setting.samples_per_rank = 0;
        problem.tables[0].weight_bytes = 2;
        problem.tables[0].optimizer = optimizer;
        let shards = option(&problem, 0, TableRowWise).shards;
        let got: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
        assert_eq!(got, [bytes; 2], "{source}, {optimizer:?}");
    }
}

/// The tables of `TestEnumerators.setUp`: eight ranks on two hosts, 256 samples per rank.
fn enumerated() -> TorchrecProblem {
    let bags: [&[f64]; 4] = [&[1.0], &[1.0, 3.0, 5.0], &[8.0, 2.0], &[2.0, 1.0, 3.0, 7.0]];
    let tables = bags.iter().zip([20, 20, 20, 40]).enumerate().map(|(i, (bags, least))| {
        let ids_per_bag = bags.to_vec();
        let table = table(100 + 10 * i as u64, 20 + 20 * i);
        TorchrecTable { ids_per_bag, least_columns: Some(least), ..table }
    });
    let mut problem = problem(tables.collect(), 8, 4);
    problem.setting.samples_per_rank = 256;
    problem
}

/// Expected shards of one table: their rows, columns and bytes.
struct Expected<'a> {
    rows: &'a [u64],
    columns: usize,
    bytes: &'a [u64],
}

fn check_shards(source: &str, sharding: ShardingType, expected: [Expected<'_>; 4]) {
    let problem = enumerated();
    for (table, expected) in expected.into_iter().enumerate() {
        let shards = option(&problem, table, sharding).shards;
        let rows: Vec<u64> =
            shards.iter().map(|shard| shard.cell.rows.end - shard.cell.rows.start).collect();
        let bytes: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
        assert_eq!((&*rows, &*bytes), (expected.rows, expected.bytes), "{source}, table {table}");
        let mut offsets = (0, 0);
        for shard in shards {
            let cell = shard.cell;
            assert_eq!(cell.columns.len(), expected.columns, "{source}, table {table}");
            assert_eq!((cell.rows.start, cell.columns.start), offsets, "{source}, table {table}");
            offsets = match sharding {
                RowWise | TableRowWise => (cell.rows.end, 0),
                _ => (0, cell.columns.end),
            };
        }
    }
}

#[test]
fn row_wise_shards_are_torchrecs() {
    let of_all = |rows: u64, last: u64| [[rows; 7].as_slice(), &[last]].concat();
    let (a, b, c, d) = (of_all(13, 9), of_all(14, 12), of_all(15, 15), of_all(17, 11));
    let bytes = [
        of_all(166928, 166608),
        of_all(1003712, 1003392),
        of_all(1007120, 1007120),
        of_all(2653504, 2651584),
    ];
    check_shards(
        "test_enumerators.py, TestEnumerators.test_rw_sharding",
        RowWise,
        [
            Expected { rows: &a, columns: 20, bytes: &bytes[0] },
            Expected { rows: &b, columns: 40, bytes: &bytes[1] },
            Expected { rows: &c, columns: 60, bytes: &bytes[2] },
            Expected { rows: &d, columns: 80, bytes: &bytes[3] },
        ],
    );
}

#[test]
fn shards_of_rows_within_a_host_are_torchrecs() {
    check_shards(
        "test_enumerators.py, TestEnumerators.test_twrw_sharding",
        TableRowWise,
        [
            Expected { rows: &[25; 4], columns: 20, bytes: &[169936; 4] },
            Expected {
                rows: &[28, 28, 28, 26],
                columns: 40,
                bytes: &[1024384, 1024384, 1024384, 1024064],
            },
            Expected { rows: &[30; 4], columns: 60, bytes: &[1031200; 4] },
            Expected {
                rows: &[33, 33, 33, 31],
                columns: 80,
                bytes: &[2685248, 2685248, 2685248, 2684608],
            },
        ],
    );
}

#[test]
fn column_wise_shards_are_torchrecs() {
    for (test, sharding) in
        [("test_cw_sharding", ColumnWise), ("test_twcw_sharding", TableColumnWise)]
    {
        check_shards(
            &format!("test_enumerators.py, TestEnumerators.{test}"),
            sharding,
            [
                Expected { rows: &[100], columns: 20, bytes: &[188224] },
                Expected { rows: &[110; 2], columns: 20, bytes: &[647776; 2] },
                Expected { rows: &[120; 3], columns: 20, bytes: &[501120; 3] },
                Expected { rows: &[130; 2], columns: 40, bytes: &[1544512; 2] },
            ],
        );
    }
}
