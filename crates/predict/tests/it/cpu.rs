//! Tests of the CPU model. Planted unit times are recovered, cache misses match a simulated cache,
//! and invalid measured steps and models are rejected.

use kernel_model::Error;
use kernel_model::cpu::{
    Context, CpuModel, CpuWork, EqualTables, Example, MODEL_VERSION, Machine, MeasuredStep,
    MeasuredSteps, MeasuredTables, TablesRound,
};
use kernel_model::embedding::Popularity;
use kernel_model::embedding::lookup::{Cores, forward_amounts};
use kernel_model::tile_use::TileUse;
use predict::program::from_trainer::ops;
use predict::step;
use predict::step::cpu::build_example;
use predict::workload::Workload;
use schema::random::CounterRng;
use schema::topology::hardware;
use schema::{DataType, FeatureStats, IndexDistribution, JobConfig, Optimizer, ShardingPlan};

const BASE: &str = include_str!("../../../../configs/dlrm-ddp.toml");

fn machine() -> Machine {
    let spec = schema::HardwareSpec {
        l2_bytes: 8 << 20,
        ..hardware("v100").expect("a known device").clone()
    };
    Machine { spec, private_cache_bytes: 1 << 20, threads: 2 }
}

/// A configuration with the plan and the feature statistics that determine its step.
struct Made {
    config: JobConfig,
    plan: ShardingPlan,
    features: Vec<FeatureStats>,
    set: Vec<(String, String)>,
}

fn example<'a>(made: &Made, measured: &'a MeasuredStep) -> Example<'a> {
    build_example(made.workload(), measured).expect("a workload")
}

impl Made {
    fn new(set: Vec<(String, String)>, (pooling, ranks): (u32, u32)) -> Self {
        let config = JobConfig::parse(BASE, &set).expect("a configuration");
        let plan = ShardingPlan::table_wise(&config.model.tables, ranks);
        let features = FeatureStats::uniform(&config.model, pooling);
        Self { config, plan, features, set }
    }

    /// Builds a random configuration, in which all sizes depend on `number`.
    fn numbered(number: u64) -> Self {
        let random = CounterRng::new(5, number);
        let pick = |at: u64, of: &[u64]| of[random.below(at, of.len() as u64) as usize];
        let (rows, dim) = (pick(0, &[1_000, 20_000, 300_000]), pick(1, &[16, 32, 64, 128]));
        let (width, top) = (pick(2, &[32, 96, 256]), pick(3, &[64, 512, 1024]));
        let set = [
            ("model.tables", format!(r#"[{{ name = "t{{0..7}}", rows = {rows}, dim = {dim} }}]"#)),
            ("model.bottom", format!("[{width}, {dim}]")),
            ("model.top", format!("[{top}, 1]")),
            ("training.batch_size", (64 + random.below(4, 2000)).to_string()),
        ];
        let set = set.map(|(key, value)| (key.to_owned(), value)).to_vec();
        Self::new(set, (pick(5, &[1, 4, 20]) as u32, 1))
    }

    fn workload(&self) -> Workload<'_> {
        Workload { config: &self.config, plan: &self.plan, features: &self.features }
    }

    /// Builds the measured step in which each unit of an amount takes the time that `unit` returns.
    fn measured(&self, unit: impl Fn(&str) -> f64) -> MeasuredStep {
        let tiles = self.workload().tiles();
        let context = Context {
            tiles: tiles.iter().collect(),
            cores: machine().cores(),
            updates: Some(self.config.optimizer.dense.kind),
        };
        let ops = ops::list_ops(self.workload()).expect("operations").remove(0);
        let time = |op: &schema::Op| {
            let work = CpuWork::from_op(op, &context).expect("no exchanges on one rank");
            let sum: f64 = work.amounts.iter().map(|(name, amount)| unit(name) * amount).sum();
            (op.name().to_owned(), sum)
        };
        let ops: Vec<(String, f64)> = ops.iter().map(time).collect();
        let pooling = self.features[0].ids_per_bag as u32;
        MeasuredStep {
            config: "dlrm-ddp".to_owned(),
            set: self.set.clone(),
            pooling,
            steps: [6, 6],
            stream_gb_per_s: 50.0,
            step_ns: ops.iter().map(|op| op.1).sum::<f64>() + 100.0 * ops.len() as f64,
            ops,
        }
    }
}

fn planted(name: &str) -> f64 {
    match name {
        "call" => 2_000.0,
        "products" => 0.005,
        "ids" => 1.5,
        "bytes" => 0.02,
        "bytes_past_last" | "row_bytes" => 0.05,
        "result" => 0.1,
        _ => 0.0,
    }
}

fn learned(made: &[Made], measured: &[MeasuredStep]) -> CpuModel {
    let both = made.iter().zip(measured);
    let examples: Vec<Example<'_>> = both.map(|(made, measured)| example(made, measured)).collect();
    CpuModel::learn(machine(), &examples, &[]).expect("a model").0
}

#[test]
fn planted_unit_times_are_recovered_on_held_out_steps() {
    let made: Vec<Made> = (0..120).map(Made::numbered).collect();
    let measured: Vec<MeasuredStep> = made.iter().map(|made| made.measured(planted)).collect();
    let model = learned(&made, &measured);
    assert!((model.between_ns() - 100.0).abs() < 1e-6, "{}", model.between_ns());
    for number in 200..220 {
        let made = Made::numbered(number);
        let truth = made.measured(planted).step_ns;
        let price = step::cpu::price(made.workload(), &model).expect("a price");
        let off = price.cost.step.mean_ns / truth - 1.0;
        assert!(off.abs() < 0.03, "configuration {number} is {off:.3} off");
        assert!(price.cost.step.low_ns <= price.cost.step.mean_ns);
        assert!(price.cost.step.mean_ns <= price.cost.step.high_ns);
    }
}

#[test]
fn two_ranks_share_the_threads_and_pay_for_what_they_exchange() {
    let made: Vec<Made> = (0..60).map(Made::numbered).collect();
    let measured: Vec<MeasuredStep> = made.iter().map(|made| made.measured(planted)).collect();
    let model = learned(&made, &measured);
    let price = |ranks: u32| {
        let made = Made::new(made[0].set.clone(), (1, ranks));
        step::cpu::price(made.workload(), &model)
    };
    let (one, two) = (price(1).expect("a price"), price(2).expect("a price"));
    let ratio = two.cost.step.mean_ns / one.cost.step.mean_ns;
    assert!((0.9..2.0).contains(&ratio), "{ratio}");
    let exchanged = two.stages[step::Stage::PooledExchange as usize].mean_ns;
    assert!(exchanged > 0.0 && one.stages[step::Stage::PooledExchange as usize].mean_ns == 0.0);
    assert_eq!((two.ranks.len(), two.ranks[0].memory.reserve), (2, 0));
    let error = price(3).expect_err("three ranks on two threads").to_string();
    assert!(error.contains("at most a rank for each of 2 threads, got 3 ranks"), "{error}");
}

#[test]
fn a_model_and_measured_steps_come_back_as_they_were_and_others_are_refused() {
    let made: Vec<Made> = (0..40).map(Made::numbered).collect();
    let steps: Vec<MeasuredStep> = made.iter().map(|made| made.measured(planted)).collect();
    let model = learned(&made, &steps);
    let text = model.to_text().expect("a text");
    assert_eq!(CpuModel::parse(&text).expect("a model"), model);
    let measured = MeasuredSteps { machine: machine(), steps, tables: Vec::new() };
    let lines = measured.to_text().expect("a text");
    assert_eq!(MeasuredSteps::parse(&lines).expect("measured steps"), measured);

    let newer = text.replacen(&format!("\"rowmill_cpu\":{MODEL_VERSION}"), "\"rowmill_cpu\":9", 1);
    for (text, expected) in [(&*newer, "version 9"), ("{}", "no version"), ("nothing", "line 1")] {
        let error = CpuModel::parse(text).expect_err("no model").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let newer = lines.replacen("\"rowmill_steps\":1", "\"rowmill_steps\":2", 1);
    let negative = lines.replacen("\"step_ns\":", "\"step_ns\":-", 1);
    let torn = &lines[..lines.len() - 20];
    for (text, expected) in [
        (&*newer, "version 2"),
        (&*negative, "line 2: expected times and rates above 0"),
        (torn, "line 41"),
    ] {
        let error = MeasuredSteps::parse(text).expect_err("no measured steps").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn steps_of_other_operations_and_too_few_of_them_are_refused() {
    let made: Vec<Made> = (0..30).map(Made::numbered).collect();
    let mut measured: Vec<MeasuredStep> = made.iter().map(|made| made.measured(planted)).collect();
    let learn = |made: &[Made], measured: &[MeasuredStep]| {
        let both = made.iter().zip(measured);
        let examples: Vec<Example<'_>> =
            both.map(|(made, measured)| example(made, measured)).collect();
        CpuModel::learn(machine(), &examples, &[]).map(|found| found.0)
    };
    let few = learn(&made[..5], &measured[..5]);
    assert!(matches!(few, Err(Error::TooFew { expected: 20, got: 5, .. })), "{few:?}");
    measured[3].ops.pop();
    let error = learn(&made, &measured).expect_err("an operation is missing").to_string();
    assert!(error.contains("the operations of the configuration"), "{error}");
}

#[test]
fn steps_measured_at_another_memory_bandwidth_are_left_out() {
    let made: Vec<Made> = (0..60).map(Made::numbered).collect();
    let measured = |made: &Made, at: usize| {
        let mut step =
            made.measured(|name| if at.is_multiple_of(3) { 2.0 } else { 1.0 } * planted(name));
        step.stream_gb_per_s = if at.is_multiple_of(3) { 30.0 } else { 50.0 };
        step
    };
    let steps: Vec<MeasuredStep> =
        made.iter().enumerate().map(|(at, made)| measured(made, at)).collect();
    let model = learned(&made, &steps);
    assert_eq!((model.steps, model.stream_gb_per_s), ([40, 60], 50.0));
}

/// Builds random tables of equal sizes, in which all sizes depend on `number`.
fn tables(number: u64) -> EqualTables {
    let random = CounterRng::new(9, number);
    let pick = |at: u64, of: &[u64]| of[random.below(at, of.len() as u64) as usize];
    EqualTables {
        count: pick(0, &[1, 3, 8]) as usize,
        rows: pick(1, &[1_000, 20_000, 300_000]),
        dim: pick(2, &[16, 32, 64, 128]) as usize,
        pooling: pick(3, &[1, 4, 20]) as usize,
        batch_size: 64 + random.below(4, 2000) as usize,
        data_type: DataType::F32,
        optimizer: Optimizer::Sgd,
        ids: IndexDistribution::Uniform,
    }
}

/// Measures lookups and updates of `tables`, where each unit of an amount takes the time that
/// `unit` returns.
fn measured_tables(tables: EqualTables, unit: impl Fn(&str) -> f64) -> MeasuredTables {
    let uses = tables.tiles();
    let cores = machine().cores();
    let context = Context { tiles: uses.iter().collect(), cores, updates: None };
    let ns =
        |work: CpuWork| work.amounts.iter().map(|(name, amount)| unit(name) * amount).sum::<f64>();
    let forward_ns = ns(CpuWork::lookups(&context));
    let backward_ns = ns(CpuWork::row_updates(tables.optimizer, &context));
    let round = TablesRound { calls: [5, 5], stream_gb_per_s: 50.0, forward_ns, backward_ns };
    MeasuredTables { tables, rounds: vec![round; 3] }
}

#[test]
fn standalone_lookups_are_the_base_of_lookups_in_steps() {
    let made: Vec<Made> = (0..60).map(Made::numbered).collect();
    // Within steps, every unit takes a quarter longer than in standalone lookups.
    let within = |name: &str| 1.25 * planted(name);
    let steps: Vec<MeasuredStep> = made.iter().map(|made| made.measured(within)).collect();
    let mut alone: Vec<MeasuredTables> =
        (0..150).map(|number| measured_tables(tables(number), planted)).collect();
    // Rounds at another memory bandwidth, and rounds without an undisturbed call, must be ignored.
    for one in &mut alone {
        let odd = TablesRound { forward_ns: 9e9, backward_ns: 9e9, ..one.rounds[0] };
        one.rounds.push(TablesRound { stream_gb_per_s: 20.0, ..odd });
        one.rounds.push(TablesRound { calls: [0, 5], ..odd });
    }
    let both = made.iter().zip(&steps);
    let examples: Vec<Example<'_>> = both.map(|(made, measured)| example(made, measured)).collect();
    let (model, errors) = CpuModel::learn(machine(), &examples, &alone).expect("a model");
    let of = |kind: &str| errors.iter().find(|one| one.kind == kind).expect("a kind");
    for kind in ["embedding_forward alone", "embedding_backward alone", "embedding_forward"] {
        let found = of(kind);
        assert!(found.gmae_pct < 3.0 && found.judged > 5, "{found:?}");
        assert_eq!(found.floor_pct.is_some(), kind.ends_with("alone"));
    }
    let shape = tables(300);
    let uses = shape.tiles();
    let context =
        Context { tiles: uses.iter().collect(), cores: model.machine.cores(), updates: None };
    let work = CpuWork::lookups(&context);
    let truth = measured_tables(shape, planted).rounds[0].forward_ns;
    let alone = model.price_alone(&work).expect("a price").mean_ns;
    let in_step = model.price(&work).expect("a price").mean_ns;
    assert!((alone / truth - 1.0).abs() < 0.05, "{alone} {truth}");
    assert!((in_step / (1.25 * truth) - 1.0).abs() < 0.05, "{in_step} {truth}");
    let text = model.to_text().expect("a text");
    assert_eq!(CpuModel::parse(&text).expect("a model"), model);
    let lines =
        MeasuredSteps { machine: machine(), steps, tables: vec![measured_tables(shape, planted)] };
    let text = lines.to_text().expect("a text");
    assert_eq!(MeasuredSteps::parse(&text).expect("measured steps"), lines);
}

/// Simulates a cache that evicts the least recently used row. Returns the share of misses in the
/// second half of `steps` steps.
fn simulated(tables: &[(u64, IndexDistribution)], uses: u64, cached: usize, steps: u64) -> f64 {
    let random = CounterRng::new(11, 0);
    let mut last_use = std::collections::BTreeMap::new();
    let mut order = std::collections::BTreeMap::new();
    let (mut now, mut missed, mut counted) = (0u64, 0u64, 0u64);
    for step in 0..steps {
        for (table, (rows, ids)) in (0u64..).zip(tables) {
            for at in 0..uses {
                let draw = random.child(table).unit(step * uses + at);
                let row = (table, ids.row_at(draw, *rows));
                now += 1;
                let is_late = step >= steps / 2;
                counted += u64::from(is_late);
                if let Some(before) = last_use.insert(row, now) {
                    order.remove(&before);
                } else {
                    missed += u64::from(is_late);
                }
                order.insert(now, row);
                if order.len() > cached {
                    let (_, dropped) = order.pop_first().expect("a row");
                    last_use.remove(&dropped);
                }
            }
        }
    }
    missed as f64 / counted as f64
}

#[test]
fn cache_misses_match_a_simulated_cache_across_steps() {
    const DIM: usize = 64;
    let zipf = |exponent| IndexDistribution::Zipf { exponent };
    for (tables, cached) in [
        (vec![(5_000, IndexDistribution::Uniform), (50_000, zipf(1.05))], 4_000),
        (vec![(2_000, IndexDistribution::Uniform)], 1_000),
        (vec![(100_000, zipf(0.8)), (100_000, zipf(1.2))], 10_000),
        (vec![(1_000, zipf(1.05))], 2_000),
    ] {
        // With bags of 50 ids, the other data that passes through the cache is small compared with
        // the rows.
        let (samples, pooling) = (100usize, 50usize);
        let tile = |(table, (rows, ids)): (usize, &(u64, IndexDistribution))| TileUse {
            table,
            rank: 0,
            dim: DIM,
            rows: *rows,
            weight_bytes: 4,
            bags: samples,
            vectors: 1,
            uses: (samples * pooling) as f64,
            longest_bag: pooling as u64,
            row_share: 1.0,
            uses_of_all: None,
            popularity: Popularity::from_distribution(ids, *rows),
        };
        let tiles: Vec<TileUse> = tables.iter().enumerate().map(tile).collect();
        let tiles: Vec<&TileUse> = tiles.iter().collect();
        let uses = (samples * pooling) as u64;
        let truth = simulated(&tables, uses, cached, 20);
        let last = (cached * 4 * DIM) as f64;
        let cores = Cores { threads: 1, private: 0.0, last };
        let amounts = forward_amounts(&tiles, cores);
        let rows = amounts.iter().find(|one| one.0 == "rows_past_last").expect("an amount").1;
        let share = rows / (uses as usize * tables.len()) as f64;
        assert!((share - truth).abs() < 0.04, "{tables:?}: {share:.3} for {truth:.3}");
    }
}
