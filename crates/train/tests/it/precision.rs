//! Tests that training with products in bf16 reaches the loss of f32, and gives the same bytes for
//! any number of threads.

use device::Cpu;
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{
    Batch, DataType, Interaction, JaggedTensor, JobConfig, Loss, ModelConfig, Optimizer, Pooling,
    Precision, Rank, ShardingPlan, TableConfig, TriangleOrder,
};
use train::Model;
use train::context::DeviceQueue;

use crate::ranks::{self, Job, Trained};

/// The size is odd because bf16 kernels process rows in pairs, and the last row then has no
/// partner.
const BATCH: usize = 63;
const STEPS: u64 = 120;
const DENSE: usize = 5;
const ROWS: u64 = 30;
/// Largest allowed difference between the mean losses over the last steps.
const LOSS_APART: f64 = 0.01;

fn config(interaction: Interaction, precision: Precision) -> JobConfig {
    let table = |name: &str| TableConfig {
        name: name.to_owned(),
        rows: ROWS,
        dim: 6,
        pooling: Pooling::Sum,
        sequence_length: None,
        data_type: DataType::F32,
        features: vec![name.to_owned()],
    };
    let model = ModelConfig {
        name: "precision".to_owned(),
        seed: 4,
        rows_cap: None,
        dense_features: DENSE,
        bottom: vec![33, 6],
        top: vec![47, 20, 1],
        interaction,
        wide: false,
        loss: Loss::BceWithLogits,
        init: DenseInit::Torchrec,
        tables: vec![table("a"), table("b")],
    };
    let mut job = ranks::job(model, (Optimizer::RowwiseAdagrad, Optimizer::Adagrad), 0.05, BATCH);
    job.training.precision = precision;
    job
}

/// Creates batches in which a click is likely if the dense features have a large sum and the first
/// id is even.
fn batches() -> Vec<Batch> {
    let batch = |step: u64| {
        let rng = CounterRng::new(8, step);
        let ids: Vec<i64> = (0..2 * BATCH as u64).map(|i| rng.below(i, ROWS) as i64).collect();
        let dense: Vec<f32> =
            (0..(BATCH * DENSE) as u64).map(|i| rng.child(1).normal(i) as f32).collect();
        let label = |(sample, dense): (usize, &[f32])| {
            let even = if ids[sample] % 2 == 0 { 1.5 } else { -1.5 };
            let logit = f64::from(dense.iter().sum::<f32>()) + even;
            f32::from(u8::from(rng.child(2).unit(sample as u64) < 1.0 / (1.0 + (-logit).exp())))
        };
        let labels = dense.chunks(DENSE).enumerate().map(label).collect();
        let sparse = JaggedTensor::from_lengths(2, &[1; 2 * BATCH], ids.clone());
        Batch { size: BATCH, dense, sparse, labels }
    };
    (0..STEPS).map(batch).collect()
}

fn trained(config: &JobConfig, ranks: u32, threads: usize) -> Trained {
    let plan = ShardingPlan::row_wise(&config.model.tables, ranks);
    let parameters = |rank: Rank| {
        ranks::parameters_of(
            &Model::initial(
                DeviceQueue { device: &Cpu::new(1), queue: &() },
                config,
                &plan,
                rank,
                1,
            )
            .unwrap(),
        )
    };
    let (batches, plan) = (&batches(), &plan);
    ranks::train(&Job { config, plan, batches, threads, parameters: &parameters })
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn training_in_bf16_reaches_the_loss_of_f32() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    for interaction in [dot, Interaction::Cat, Interaction::DcnV2 { layers: 2, rank: 3 }] {
        let [full, half] = [Precision::F32, Precision::Bf16]
            .map(|precision| trained(&config(interaction, precision), 1, 1).losses);
        let last = full.len() - 30;
        let [before, after] = [mean(&half[..10]), mean(&half[last..])];
        assert!(after < 0.8 * before, "{interaction:?}: from {before} to {after}");
        let apart = (after - mean(&full[last..])).abs();
        assert!(apart < LOSS_APART, "{interaction:?}: {apart} from f32");
        assert!(half != full, "{interaction:?}: nothing was rounded");
    }
}

#[test]
fn results_do_not_depend_on_threads_and_barely_on_ranks() {
    let config = config(Interaction::DcnV2 { layers: 2, rank: 3 }, Precision::Bf16);
    let alone = trained(&config, 1, 1);
    for threads in [2, 7] {
        assert_eq!(trained(&config, 1, threads), alone, "{threads} threads");
    }
    let together = trained(&config, 2, 1);
    let apart = (mean(&together.losses) - mean(&alone.losses)).abs();
    assert!(apart < LOSS_APART, "{apart}");
}
