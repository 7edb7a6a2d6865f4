//! The calls of whole steps that reach NVIDIA's driver, as a stub of its library records them: a
//! device that does nothing until the host waits for it. The test starts itself with the stub where
//! the linker looks, because a library is looked for once per process.

use std::path::PathBuf;

use device::backend::Cuda;
use device::cuda::Driver;
use schema::model::DenseInit;
use schema::{
    Batch, DataType, Interaction, KeyedJaggedTensor, Loss, ModelConfig, Optimizer, Pooling, Rank,
    ShardingPlan, TableConfig, TriangleOrder,
};
use train::model::Started;
use train::profile::Profiler;
use train::{Model, RankContext, Share, Step};

use crate::ranks;

#[path = "../../../device/tests/it/cuda/stub_library.rs"]
mod stub_library;

/// Samples of a batch.
pub const SAMPLES: usize = 6;

/// The calls of the child with the stub, from the mark of its second step on, by step.
fn steps(child: &str) -> Option<Vec<Vec<String>>> {
    let calls = stub_library::calls(&format!("stub::{child}"))?;
    let marked = calls.split(|call| call.starts_with("cuMemsetD8Async 1 "));
    Some(marked.skip(2).map(<[String]>::to_vec).collect())
}

fn check(child: &str) {
    let Some(steps) = steps(child) else { return };
    // The last has what the end of the child does.
    let steps = &steps[..steps.len() - 1];
    assert_eq!(steps.len(), 5, "{child}");
    let launches = |step: &[String]| -> Vec<String> {
        step.iter().filter(|call| call.starts_with("cuLaunchKernel")).cloned().collect()
    };
    let first = launches(&steps[0]);
    assert!(first.len() > 30, "{child}: {first:#?}");
    for (number, step) in steps.iter().enumerate() {
        let waits = step.iter().filter(|call| *call == "cuEventSynchronize").count();
        // That for what the step before found out.
        assert_eq!(waits, 1, "{child}, step {number}: {step:#?}");
        let fits = ["cuLaunchKernel", "cuMemcpy", "cuMemset", "cuEventRecord", "cuEventSynch"];
        for call in step {
            let fits = fits.iter().any(|kind| call.starts_with(kind));
            assert!(fits, "{child}, step {number}: an operation of a stream, got {call}");
        }
        assert_eq!(launches(step), first, "{child}, step {number}");
    }
}

/// A small model.
pub fn model(interaction: Interaction, pooling: Pooling) -> ModelConfig {
    let table = |number: u64| TableConfig {
        name: format!("t{number}"),
        rows: 10 + number,
        dim: 4,
        pooling,
        sequence_length: None,
        data_type: DataType::F32,
        features: vec![format!("t{number}")],
    };
    ModelConfig {
        name: "stub".to_owned(),
        seed: 1,
        rows_cap: None,
        dense_features: 3,
        bottom: vec![8, 4],
        top: vec![8, 5, 1],
        interaction,
        loss: Loss::BceWithLogits,
        init: DenseInit::Dlrm,
        tables: (0..3).map(table).collect(),
    }
}

/// `len` ids in each bag.
pub fn batch(len: usize) -> Batch {
    let lengths = [len; 3 * SAMPLES];
    let values = (0..3 * SAMPLES * len).map(|i| (i % 10) as i64).collect();
    let sparse = KeyedJaggedTensor::from_lengths(3, &lengths, values);
    let (dense, labels) = (vec![0.5; 3 * SAMPLES], vec![1.0; SAMPLES]);
    Batch { size: SAMPLES, dense, sparse, labels }
}

/// In the process that was started for it: steps whose outcome is read when the next one has been
/// given to the device. The first has the most ids.
fn run(model: ModelConfig, optimizer: Optimizer) {
    let Some(log) = std::env::var_os("ROWMILL_STUB").map(PathBuf::from) else { return };
    let driver = Driver::cuda(0, None, log.parent().unwrap().to_owned()).unwrap();
    let (mark, marks) = (driver.alloc(1).unwrap(), driver.stream().unwrap());
    let config = ranks::job(model, (optimizer, optimizer), 0.1, SAMPLES);
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let device = Cuda::new(driver, 1).unwrap();
    let mut context = RankContext::alone(device, Profiler::off()).unwrap();
    let mut model = Model::initial(context.on(), &config, (&plan, Rank(0)), SAMPLES).unwrap();
    let mut before: Option<(Started<Cuda>, Batch)> = None;
    for (number, len) in (0..).zip([4, 4, 3, 0, 1, 4]) {
        marks.fill(&mark, 0).unwrap();
        let batch = batch(len);
        let share = Share { batch: &batch, first_sample: 0, global_size: SAMPLES };
        let started = model.start(&mut context, share, Step { number, factor: 1.0 }).unwrap();
        if let Some((started, batch)) = before.replace((started, batch.clone())) {
            let share = Share { batch: &batch, first_sample: 0, global_size: SAMPLES };
            model.finish(&mut context, started, share).unwrap();
        }
    }
    marks.fill(&mark, 0).unwrap();
}

#[test]
fn dot_child() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    run(model(dot, Pooling::Sum), Optimizer::RowwiseAdagrad);
}

#[test]
fn cross_child() {
    run(model(Interaction::DcnV2 { layers: 2, rank: 3 }, Pooling::Mean), Optimizer::Lamb);
}

#[test]
fn a_step_allocates_nothing_waits_for_nothing_and_is_the_same_for_every_batch() {
    check("dot_child");
    check("cross_child");
}
