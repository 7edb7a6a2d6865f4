//! Tests of prices for kernels of unrecorded sizes, which are scaled from recorded sizes.

use predict::calibration::price::Prices;
use predict::calibration::roofline_scaling::{self, Roof};
use predict::calibration::{Calibration, Key};
use predict::program::WorkKind;
use predict::program::from_trainer;
use predict::program::from_trainer::ops;
use predict::recording::Setting;
use predict::workload::Workload;
use schema::{FeatureStats, ShardingPlan};

/// Scales recorded work to the sizes in `detail`, rounded to nanoseconds.
fn scaled(known: &[(&str, f64)], detail: &str) -> i64 {
    // The roofline allows one byte per nanosecond.
    let roof = Roof::from_works([("1; 0 FLOP, 100000000 B", 1e8)].into_iter());
    roofline_scaling::scaled(known, detail, roof).expect("a roofline").round() as i64
}

#[test]
fn an_update_of_a_few_rows_keeps_the_time_to_start_it() {
    // The recorded work takes 5 µs to start and then 2 ns per byte.
    let known = [("64; 64 FLOP, 1000 B", 7_000.0), ("640; 640 FLOP, 10000 B", 25_000.0)];
    assert_eq!(scaled(&known, "6400; 6400 FLOP, 100000 B"), 205_000);
    assert_eq!(scaled(&known, "6; 6 FLOP, 100 B"), 5_200);
    // A single shape does not show which part of its time is its start.
    assert_eq!(scaled(&known[..1], "640; 640 FLOP, 10000 B"), 70_000);
    // If the larger shape takes more than in proportion to its size, no start time follows.
    let known = [("64; 64 FLOP, 1000 B", 2_000.0), ("640; 640 FLOP, 10000 B", 40_000.0)];
    assert_eq!(scaled(&known[..1], "6; 6 FLOP, 100 B"), 200);
    assert!(scaled(&known, "6; 6 FLOP, 100 B") < 400);
}

#[test]
fn other_batch_sizes_of_a_layer_take_precedence() {
    // The layer takes 4 ns per byte, and a layer of other widths takes 8 ns per byte.
    let known = [
        ("512x64, 64x32; 1 FLOP, 1000 B", 4_000.0),
        ("2048x64, 64x32; 1 FLOP, 4000 B", 16_000.0),
        ("2048x60, 60x36; 1 FLOP, 4000 B", 32_000.0),
    ];
    assert_eq!(scaled(&known, "4096x64, 64x32; 1 FLOP, 8000 B"), 32_000);
}

#[test]
fn equal_sizes_take_precedence_over_another_batch() {
    // Batches of one size differ in their distinct rows and therefore in bytes. Two batches of a
    // quarter of the size take twice as long per byte.
    let known = [
        ("2048; 1 FLOP, 100000 B", 100_000.0),
        ("512; 1 FLOP, 25000 B", 50_000.0),
        ("512; 1 FLOP, 25100 B", 50_200.0),
    ];
    let found = scaled(&known, "2048; 1 FLOP, 99800 B");
    assert!((99_000..=104_000).contains(&found), "{found}");
}

/// Predicts an operation of the first of two ranks of `dlrm-ddp` from a single recorded kernel.
fn predict_on_two_ranks(op: &str, known: (&str, i64)) -> i64 {
    let text = include_str!("../../../../configs/dlrm-ddp.toml");
    let config = schema::JobConfig::parse(text, &[]).expect("a configuration");
    let plan = ShardingPlan::table_wise(&config.model.tables, 2);
    let features = FeatureStats::uniform(&config.model, 1);
    let workload = Workload { config: &config, plan: &plan, features: &features };
    let program = from_trainer::build_program(&ops::list_ops(workload).expect("a workload"), 2.0);
    let mut calibration = Calibration::default();
    let key = Key { class: WorkKind::Kernel, name: "k".to_owned(), detail: known.0.to_owned() };
    calibration.works.insert(key, vec![known.1].into());
    let costs = Prices::new(&calibration).price(&program, &Setting::default());
    let works = &program.ranks[0].works;
    let place = works.iter().position(|work| program.text(work.op) == op).expect("an operator");
    costs.ranks[0].works[place].ns
}

#[test]
fn in_process_exchanges_cost_memory_passes() {
    // The lookup moves 12 bytes per nanosecond on both cores, so each rank moves 6 on its own core.
    let lookup = ("16384 long int, 16385 long int; 2100000 FLOP, 12000000 B", 1_000_000);
    // Half of the rank's 4.2 MB of pooled values are copied, which reads and writes them. The 4.2
    // MB that arrive or stay are read and summed into pooled vectors of 4.2 MB.
    assert_eq!(predict_on_two_ranks("rowmill::output_dist", lookup), 2_100_000);
    // 4.2 MB are gathered into messages, and 4.2 MB are concatenated. Each byte is read and
    // written.
    assert_eq!(predict_on_two_ranks("rowmill::gradient_dist", lookup), 2_800_000);
    // A matrix product is not a pass over memory. No other work was recorded, so the roofline
    // prices the exchange.
    let product = ("512x512 float; 268000000 FLOP, 12600000 B", 2_000_000);
    assert_eq!(predict_on_two_ranks("rowmill::output_dist", product), 4_000_000);
}
