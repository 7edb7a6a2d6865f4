//! Tests of the format, the schedule, the links and the bag sizes of a predicted step.

use kernel_model::Estimate;
use predict::step::{
    BottomMlp, Conditions, DenseKernels, Models, RowUpdates, Stage, StepPrice, StepPricer, price,
};
use predict::workload::Workload;
use schema::stage::Overlap;
use schema::topology::ProductFormat;
use schema::{FeatureStats, HostLayout, JobConfig, Rank, Schedule, ShardingPlan, Topology};

const MLPERF: &str = include_str!("../../../../configs/dlrm-mlperf.toml");
const DCNV2: &str = include_str!("../../../../configs/dlrm-dcnv2.toml");

fn config(text: &str, batch_size: usize) -> JobConfig {
    let set = [("training.batch_size".to_owned(), batch_size.to_string())];
    JobConfig::parse(text, &set).expect("a configuration")
}

fn priced(config: &JobConfig, plan: &ShardingPlan, conditions: Conditions<'_>) -> StepPrice {
    let features = FeatureStats::with_bag_sizes(config, 1);
    price(Workload { config, plan, features: &features }, conditions).expect("a price")
}

fn stage_ns(price: &StepPrice, stage: Stage) -> f64 {
    price.stages[stage as usize].mean_ns
}

#[test]
fn narrower_formats_are_faster_and_need_less_memory() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 65_536);
    let plan = ShardingPlan::table_wise(&config.model.tables, 8);
    let topology = Topology::parse("dgx-a100").expect("a host");
    let at = |format: ProductFormat| {
        priced(&config, &plan, Conditions { format, ..Conditions::new(&topology, &models) })
    };
    let [f32, tf32, bf16, f16] = ProductFormat::ALL.map(at);
    let step = |price: &StepPrice| price.cost.step.mean_ns;
    assert!(step(&bf16) < step(&tf32) && step(&tf32) < step(&f32));
    assert_eq!(step(&bf16), step(&f16), "both have the same rate and bytes");
    assert!(bf16.cost.peak_bytes < tf32.cost.peak_bytes);
    assert_eq!(tf32.cost.peak_bytes, f32.cost.peak_bytes);
    for (rank, wide) in bf16.ranks.iter().zip(&f32.ranks) {
        assert_eq!(rank.memory.table_weights, wide.memory.table_weights, "tables stay f32");
        assert_eq!(rank.memory.dense_parameters, wide.memory.dense_parameters);
        assert_eq!(2 * rank.memory.exchange, wide.memory.exchange);
    }
}

#[test]
fn a_format_that_the_device_lacks_is_refused() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 512);
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let features = FeatureStats::uniform(&config.model, 1);
    for (device, format) in [("v100", ProductFormat::Bf16), ("t4", ProductFormat::Tf32)] {
        let topology = Topology::parse(device).expect("a device");
        let workload = Workload { config: &config, plan: &plan, features: &features };
        let conditions = Conditions { format, ..Conditions::new(&topology, &models) };
        let error = price(workload, conditions).expect_err("no such unit").to_string();
        let got = format!("got {}", format.name());
        assert!(error.contains("expected one of f32, fp16") && error.contains(&got), "{error}");
    }
}

#[test]
fn stages_add_up_and_overlaps_hide_exchanges() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 65_536);
    let plan = ShardingPlan::table_wise(&config.model.tables, 8);
    let topology = Topology::parse("dgx-1").expect("a host");
    let at = |schedule: Schedule| {
        priced(&config, &plan, Conditions { schedule, ..Conditions::new(&topology, &models) })
    };
    let serial = at(Schedule::SERIAL);
    let pipelined = at(Schedule::PIPELINED);
    for price in [&serial, &pipelined] {
        let sum = price.stages.iter().fold(Estimate::default(), |sum, stage| sum.plus(*stage));
        assert!((sum.mean_ns / price.cost.step.mean_ns - 1.0).abs() < 1e-9);
    }
    assert!(pipelined.cost.step.mean_ns < serial.cost.step.mean_ns);
    // The ids of the next batch travel beside the dense layers.
    assert_eq!(stage_ns(&pipelined, Stage::InputDistribution), 0.0);
    for overlap in Overlap::ALL {
        let one = at(Schedule::SERIAL.with(overlap));
        assert!(one.cost.step.mean_ns <= serial.cost.step.mean_ns, "{overlap:?}");
        assert!(one.cost.step.mean_ns >= pipelined.cost.step.mean_ns, "{overlap:?}");
    }
}

#[test]
fn hosts_add_up_partial_sums_before_they_send_them() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 65_536);
    let topology = Topology::parse("4xdgx-a100").expect("hosts");
    let conditions =
        Conditions { schedule: Schedule::SERIAL, ..Conditions::new(&topology, &models) };
    let hosts = HostLayout::with_ranks_per_host(32, 8).expect("hosts");
    let by_host = ShardingPlan::table_row_wise(&config.model.tables, &hosts);
    // The same tiles on ranks that do not know their hosts exchange all partial sums.
    let apart = ShardingPlan::new(32, by_host.tiles().to_vec(), &config.model.tables);
    let apart = priced(&config, &apart.expect("a plan"), conditions);
    let reduced = priced(&config, &by_host, conditions);
    let [sums, all] = [&reduced, &apart].map(|price| stage_ns(price, Stage::PooledExchange));
    assert!(sums < 0.5 * all, "{sums} {all}");

    // A tile that leaves its host leaves the sum as well, until it is back.
    let features = FeatureStats::with_bag_sizes(&config, 1);
    let workload = Workload { config: &config, plan: &by_host, features: &features };
    let mut pricer = StepPricer::new(workload, conditions).expect("a pricer");
    let before = pricer.cost();
    let host = by_host.tiles()[0].rank.0 / 8;
    assert_ne!(pricer.move_tile(by_host.tiles()[0].table, 0, Rank((host + 1) % 4 * 8)), before);
    assert_eq!(pricer.undo(), before);
}

#[test]
fn bag_sizes_of_the_configuration_replace_the_default() {
    let models = Models::shipped().expect("models");
    let config = config(DCNV2, 8_192);
    assert_eq!(config.synthetic.bag_sizes.values().sum::<u32>(), 214);
    let plan = ShardingPlan::row_wise(&config.model.tables, 8);
    let topology = Topology::parse("dgx-h100").expect("a host");
    let sized = priced(&config, &plan, Conditions::new(&topology, &models));
    let mut single = config.clone();
    single.synthetic.bag_sizes.clear();
    let single = priced(&single, &plan, Conditions::new(&topology, &models));
    assert!(stage_ns(&sized, Stage::Lookup) > stage_ns(&single, Stage::Lookup));
    // The offsets of bags do not grow.
    assert!(sized.ranks[0].memory.ids > 2 * single.ranks[0].memory.ids);
}

#[test]
fn compilers_and_fused_kernels_save_time() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 65_536);
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let topology = Topology::parse("a100-sxm4-80gb").expect("a device");
    let at = |kernels: DenseKernels| {
        priced(&config, &plan, Conditions { kernels, ..Conditions::new(&topology, &models) })
    };
    let kinds = [DenseKernels::Eager, DenseKernels::Compiled, DenseKernels::FusedInteraction];
    let prices = kinds.map(at);
    for pair in prices.windows(2) {
        assert!(pair[1].cost.step.mean_ns < pair[0].cost.step.mean_ns);
        assert!(pair[1].launches < pair[0].launches);
    }
    let scatter =
        Conditions { row_updates: RowUpdates::Scatter, ..Conditions::new(&topology, &models) };
    assert!(priced(&config, &plan, scatter).cost.step.mean_ns > prices[0].cost.step.mean_ns);
}

#[test]
fn a_bottom_mlp_on_one_rank_takes_the_whole_batch() {
    let models = Models::shipped().expect("models");
    let config = config(MLPERF, 65_536);
    let plan = ShardingPlan::table_wise(&config.model.tables, 8);
    let topology = Topology::parse("dgx-2x8").expect("a host");
    let at = |bottom_mlp: BottomMlp| {
        let schedule = Schedule::SERIAL;
        let new = Conditions::new(&topology, &models);
        priced(&config, &plan, Conditions { bottom_mlp, schedule, ..new })
    };
    let [shared, first] = [BottomMlp::DataParallel, BottomMlp::FirstRank].map(at);
    assert!(stage_ns(&first, Stage::Dense) < stage_ns(&shared, Stage::Dense));
    assert!(stage_ns(&first, Stage::PooledExchange) >= stage_ns(&shared, Stage::PooledExchange));
    assert!(first.cost.step.mean_ns > shared.cost.step.mean_ns);
}
