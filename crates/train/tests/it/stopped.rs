//! Tests that a step with a non-finite loss or an out-of-range id changes no weight on any rank.
//!
//! The same holds for a step that was submitted to the device before the error was known.

use device::backend::Cuda;
use device::{Backend, Cpu};
use schema::{Interaction, JobConfig, Optimizer, Pooling, Rank, ShardingPlan, TriangleOrder};
use train::context::DeviceQueue;
use train::model::RankParameters;
use train::profile::Profiler;
use train::{Error, Model, RankContext, RunStep, SampleShare};

use crate::ranks::{self, Job, Trained};
use crate::stub::{SAMPLES, batch, model};

fn config() -> JobConfig {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    let kinds = (Optimizer::RowwiseAdagrad, Optimizer::Adam);
    ranks::job(model(dot, Pooling::Sum), kinds, 0.1, SAMPLES)
}

/// Returns the initial parameters of a rank.
fn initial(config: &JobConfig, plan: &ShardingPlan, rank: Rank) -> RankParameters {
    let device_queue = DeviceQueue { device: &Cpu::new(1), queue: &() };
    ranks::parameters_of(&Model::initial(device_queue, config, plan, rank, SAMPLES).unwrap())
}

#[test]
fn a_nan_loss_on_one_rank_leaves_all_weights_unchanged() {
    let config = config();
    let tables = &config.model.tables;
    for ranks in [1, 2] {
        let plan = ShardingPlan::row_wise(tables, ranks);
        let (good, mut bad) = (batch(2), batch(2));
        // Set a dense feature of the last sample to NaN. The last rank holds this sample.
        *bad.dense.last_mut().unwrap() = f32::NAN;
        let run = |batches: &[schema::Batch], train: &dyn Fn(&Job<'_>) -> Trained| {
            let parameters = &|rank| initial(&config, &plan, rank);
            train(&Job { config: &config, plan: &plan, batches, threads: 1, parameters })
        };
        let check = |train: &dyn Fn(&Job<'_>) -> Trained| {
            let before = run(&[], train);
            let stopped = run(&[bad.clone(), good.clone()], train);
            assert!(stopped.losses[0].is_nan());
            assert!(stopped.dense == before.dense && stopped.tables == before.tables, "{ranks}");
            let trained = run(std::slice::from_ref(&good), train);
            assert!(trained.dense != before.dense && trained.tables != before.tables, "{ranks}");
        };
        check(&ranks::train);
        if let Some(driver) = ranks::emulated() {
            check(&|job| ranks::train_emulated(job, &driver));
        }
    }
}

#[test]
fn an_out_of_range_id_found_on_the_device_stops_submitted_steps() {
    let Some(driver) = ranks::emulated() else { return };
    let (config, device) = (config(), Cuda::new(driver, 1).unwrap());
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let mut context = RankContext::alone(device, Profiler::off()).unwrap();
    let mut model =
        Model::initial(context.device_queue(), &config, &plan, Rank(0), SAMPLES).unwrap();
    let before = weights(&context, &model);
    let (good, mut bad) = (batch(2), batch(2));
    // Change the id of the second feature in the third sample. The table of the second feature has
    // 11 rows, so 11 is out of range.
    let place = (SAMPLES + 2) * 2;
    bad.sparse.values[place] = 11;
    let share = |batch| SampleShare { batch, first_sample: 0, global_size: SAMPLES };
    let step = |number| RunStep { number, factor: 1.0 };
    let first = model.start(&mut context, share(&bad), step(0)).unwrap();
    let second = model.start(&mut context, share(&good), step(1)).unwrap();
    let error = model.finish(&mut context, first, share(&bad)).unwrap_err();
    assert!(
        matches!(&error, Error::RowOutOfRange { table, feature: 1, sample: 2, id: 11, rows: 11 }
            if table == "t1"),
        "{error}"
    );
    let loss = model.finish(&mut context, second, share(&good)).unwrap();
    assert!(loss.is_finite());
    assert_eq!(weights(&context, &model), before);
}

fn weights<B: Backend>(context: &RankContext<B>, model: &Model<B>) -> Vec<Vec<f32>> {
    let parameters = model.dense().to_parameters(context.device_queue()).unwrap();
    parameters.into_iter().map(|parameter| parameter.weight).collect()
}
