//! Compares the trainer with the plain f64 DLRM of `oracle`.
//!
//! The tests cover interactions, pooling, shared tables, optimizers and tilings that the golden
//! runs do not have.

use device::Cpu;
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{
    Batch, DataType, Interaction, JaggedTensor, JobConfig, Loss, ModelConfig, Optimizer, Pooling,
    Rank, ShardingPlan, SplitRowRule, TableConfig, TriangleOrder, WeightDecayMode,
};
use train::context::DeviceQueue;
use train::model::RankParameters;
use train::profile::Profiler;
use train::{Model, RankContext, RunStep, SampleShare};

use crate::oracle::Oracle;
use crate::ranks::{self, Job};

const DIM: usize = 6;

/// Creates a model with three tables: one with mean pooling, one shared by two features, and one
/// with a single row.
fn config(interaction: Interaction, optimizer: Optimizer) -> JobConfig {
    let table = |name: &str, rows, pooling, features: &[&str]| TableConfig {
        name: name.to_owned(),
        rows,
        dim: DIM,
        pooling,
        sequence_length: None,
        data_type: DataType::F32,
        features: features.iter().map(|&feature| feature.to_owned()).collect(),
    };
    let model = ModelConfig {
        name: "against_oracle".to_owned(),
        seed: 11,
        rows_cap: None,
        dense_features: 5,
        bottom: vec![9, DIM],
        top: vec![7, 1],
        interaction,
        wide: false,
        loss: Loss::BceWithLogits,
        init: DenseInit::Torchrec,
        tables: vec![
            table("averaged", 40, Pooling::Mean, &["a"]),
            table("shared", 23, Pooling::Sum, &["b", "c"]),
            table("single", 1, Pooling::Sum, &["d"]),
        ],
    };
    ranks::job(model, (optimizer, Optimizer::Adagrad), 0.05, 13)
}

/// Adds a table without pooling that two features share. Bags have up to 4 ids, of which 3 are
/// looked up, so the sequences include longer, shorter and empty ones.
fn with_sequences(interaction: Interaction, optimizer: Optimizer) -> JobConfig {
    let mut config = config(interaction, optimizer);
    let sequence = TableConfig {
        name: "sequence".to_owned(),
        rows: 17,
        pooling: Pooling::None,
        sequence_length: Some(3),
        features: vec!["e".to_owned(), "f".to_owned()],
        ..config.model.tables[0].clone()
    };
    config.model.tables.insert(1, sequence);
    config
}

/// Creates batches of 13 samples with empty bags and many duplicate ids.
fn batches(config: &JobConfig, steps: u64) -> Vec<Batch> {
    let features = config.model.features();
    let batch = |step: u64| {
        let rng = CounterRng::new(3, step);
        let (mut lengths, mut values) = (Vec::new(), Vec::new());
        for (feature, described) in features.iter().enumerate() {
            let rows = config.model.tables[described.table].rows;
            for sample in 0..13 {
                let rng = rng.child(feature as u64).child(sample);
                let length = rng.below(0, 5);
                lengths.push(length as usize);
                values.extend((1..=length).map(|i| (rng.below(i, rows) * rng.below(9, 2)) as i64));
            }
        }
        let dense = (0..13 * 5).map(|i| rng.child(100).normal(i) as f32).collect();
        let labels = (0..13).map(|i| rng.child(101).below(i, 2) as f32).collect();
        let sparse = JaggedTensor::from_lengths(features.len(), &lengths, values);
        Batch { size: 13, dense, sparse, labels }
    };
    (0..steps).map(batch).collect()
}

fn initial(config: &JobConfig, plan: &ShardingPlan, rank: Rank) -> RankParameters {
    ranks::parameters_of(
        &Model::initial(DeviceQueue { device: &Cpu::new(1), queue: &() }, config, plan, rank, 1)
            .unwrap(),
    )
}

fn check(config: &JobConfig, plan: &ShardingPlan, what: &str) {
    let batches = batches(config, 12);
    let whole = ShardingPlan::table_wise(&config.model.tables, 1);
    let mut oracle = Oracle::new(config, plan, &initial(config, &whole, Rank(0)));
    let expected: Vec<f64> = batches.iter().map(|batch| oracle.step(batch)).collect();
    let parameters = |rank| initial(config, plan, rank);
    let trained =
        ranks::train(&Job { config, plan, batches: &batches, threads: 1, parameters: &parameters });
    for (step, (got, expected)) in trained.losses.iter().zip(&expected).enumerate() {
        let error = ((got - expected) / expected).abs();
        assert!(error < 1e-5, "{what}: step {step}: loss {got}, expected {expected}");
    }
    let close = |name: &str, got: &[f32], expected: &[f64]| {
        let apart = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs();
        let worst = got.iter().zip(expected).map(apart).fold(0.0, f64::max);
        assert!(worst < 3e-4, "{what}: {name}: {worst} apart");
    };
    for parameter in &trained.dense {
        close(&parameter.name, &parameter.weight, &oracle.dense[&parameter.name]);
    }
    for (table, (got, expected)) in trained.tables.iter().zip(&oracle.tables).enumerate() {
        close(&format!("table {table}"), got, expected);
    }
}

fn on_every_tiling(config: &JobConfig) {
    let tilings = [
        ShardingPlan::table_wise,
        ShardingPlan::row_wise,
        ShardingPlan::column_wise,
        ShardingPlan::mixed,
        ShardingPlan::replicate,
        crate::checkpoint::with_replicas,
    ];
    for ranks in 1..=3 {
        for (i, make) in tilings.iter().enumerate() {
            let plan = make(&config.model.tables, ranks);
            let what = format!("{:?}, {ranks} ranks, tiling {i}", config.model.interaction);
            check(config, &plan, &what);
        }
    }
}

#[test]
fn rowwise_adagrad_keeps_one_state_per_row_or_per_column_tile() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    let mut config = config(dot, Optimizer::RowwiseAdagrad);
    on_every_tiling(&config);
    config.optimizer.row_scope = SplitRowRule::ColumnTiles;
    on_every_tiling(&config);
}

#[test]
fn adam_and_lamb_with_weight_decay_match_the_oracle() {
    for kind in [Optimizer::Adam, Optimizer::SparseAdam, Optimizer::Lamb] {
        let mut config = config(Interaction::Cat, kind);
        config.optimizer.sparse.weight_decay = 0.05;
        config.optimizer.sparse.weight_decay_mode = WeightDecayMode::Decoupled;
        // Use a large epsilon, so that rounding of sums near 0 does not decide the direction of a
        // step.
        config.optimizer.sparse.epsilon = 1e-3;
        config.optimizer.dense = config.optimizer.sparse;
        config.optimizer.dense.weight_decay_mode = WeightDecayMode::L2;
        on_every_tiling(&config);
        if kind == Optimizer::Lamb {
            config.optimizer.row_scope = SplitRowRule::ColumnTiles;
            on_every_tiling(&config);
        }
    }
}

#[test]
fn wide_terms_and_shared_tables_match_the_oracle_under_every_interaction() {
    for interaction in [
        Interaction::Dot { order: TriangleOrder::Upper, itself: true },
        Interaction::Cat,
        Interaction::DcnV2 { layers: 2, rank: 4 },
    ] {
        let mut config = config(interaction, Optimizer::Adagrad);
        config.model.wide = true;
        on_every_tiling(&config);
    }
}

#[test]
fn sequences_match_the_oracle_under_every_interaction_and_optimizer() {
    for interaction in [
        Interaction::Dot { order: TriangleOrder::Lower, itself: false },
        Interaction::Dot { order: TriangleOrder::Upper, itself: true },
        Interaction::DcnV2 { layers: 2, rank: 4 },
    ] {
        on_every_tiling(&with_sequences(interaction, Optimizer::Adagrad));
    }
    for optimizer in Optimizer::ALL {
        let mut config = with_sequences(Interaction::Cat, optimizer);
        // Use a large epsilon, so that rounding of sums near 0 does not decide the direction of a
        // step.
        config.optimizer.sparse.epsilon = 1e-3;
        on_every_tiling(&config);
    }
}

#[test]
fn an_id_out_of_range_is_named_and_changes_no_weight() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    let config = config(dot, Optimizer::Adagrad);
    let plan = ShardingPlan::mixed(&config.model.tables, 1);
    let mut context = RankContext::alone(Cpu::new(1), Profiler::off()).unwrap();
    let mut model = Model::initial(context.device_queue(), &config, &plan, Rank(0), 13).unwrap();
    let before = ranks::parameters_of(&model);
    let good = batches(&config, 1).remove(0);
    for bad_id in [23, -1, i64::MIN] {
        let mut batch = good.clone();
        // Feature 1 looks up the shared table, which has 23 rows.
        let position = batch.sparse.feature(1).start + 4;
        batch.sparse.values[position] = bad_id;
        let bag = batch.sparse.offsets.partition_point(|&start| start <= position) - 1;
        let share = SampleShare { batch: &batch, first_sample: 100, global_size: 13 };
        let failed = model.train(&mut context, share, RunStep { number: 7, factor: 1.0 });
        let error = failed.unwrap_err().to_string();
        let sample = 100 + bag - 13;
        let expected = format!(
            "step 7, stage input_distribution: table \"shared\", sample {sample}, feature 1: expected an id in 0..23, got {bad_id}"
        );
        assert_eq!(error, expected);
        let after = ranks::parameters_of(&model);
        assert_eq!((after.dense, after.tiles), (before.dense.clone(), before.tiles.clone()));
    }
}
