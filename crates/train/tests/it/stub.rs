//! Counts the calls that a training step makes to NVIDIA's driver.
//!
//! A stub of the driver library records the calls and simulates a device that does nothing until
//! the host waits for it. The test runs itself as a child process with the stub on the library
//! path, because a process searches for a library only once.

use std::path::PathBuf;

use device::backend::Cuda;
use device::cuda::Driver;
use schema::model::DenseInit;
use schema::{
    Batch, DataType, Interaction, JaggedTensor, Loss, ModelConfig, Optimizer, Pooling, Precision,
    Rank, ShardingPlan, TableConfig, TriangleOrder,
};
use trace::{Clock, Recorder, RunInfo};
use train::model::Started;
use train::profile::Profiler;
use train::{Model, RankContext, RunStep, SampleShare};

use crate::ranks;

#[path = "../../../device/tests/it/cuda/stub_library.rs"]
pub mod stub_library;
use stub_library::{Libraries, options};

/// Number of samples in a batch.
pub const SAMPLES: usize = 6;

/// Runs a child process with the stub and returns its calls by step, starting with the second step.
fn steps(child: &str) -> Option<Vec<Vec<String>>> {
    let libraries =
        if child == "library_child" { Libraries::DriverAndBlas } else { Libraries::Driver };
    let calls = stub_library::calls(&format!("stub::{child}"), libraries, &[])?;
    let marked = calls.split(|call| call.starts_with("cuMemsetD8Async 1 "));
    Some(marked.skip(2).map(<[String]>::to_vec).collect())
}

fn check(child: &str) {
    let Some(steps) = steps(child) else { return };
    // The last entry also contains the calls that the child process makes when it exits, so leave
    // it out.
    let steps = &steps[..steps.len() - 1];
    assert_eq!(steps.len(), 5, "{child}");
    let is_work = |call: &&String| {
        call.starts_with("cuLaunchKernel") || call.starts_with("cublasLtMatmul compute")
    };
    let launches =
        |step: &[String]| -> Vec<String> { step.iter().filter(is_work).cloned().collect() };
    let first = launches(&steps[0]);
    assert!(first.len() > 30, "{child}: {first:#?}");
    for (number, step) in steps.iter().enumerate() {
        let waits = step.iter().filter(|call| *call == "cuEventSynchronize").count();
        // A step may wait only once, for the outcome of the previous step.
        assert_eq!(waits, 1, "{child}, step {number}: {step:#?}");
        let fits = ["cuMemcpy", "cuMemset", "cuEventRecord", "cuEventSynch", "cuStreamWait"];
        for call in step {
            let fits = is_work(&call) || fits.iter().any(|kind| call.starts_with(kind));
            assert!(fits, "{child}, step {number}: an operation of a stream, got {call}");
        }
        assert_eq!(launches(step), first, "{child}, step {number}");
    }
}

/// Creates a small model for runs on the stub driver.
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
        wide: true,
        loss: Loss::BceWithLogits,
        init: DenseInit::Dlrm,
        tables: (0..3).map(table).collect(),
    }
}

/// Creates a batch with `len` ids in each bag.
pub fn batch(len: usize) -> Batch {
    let lengths = [len; 3 * SAMPLES];
    let values = (0..3 * SAMPLES * len).map(|i| (i % 10) as i64).collect();
    let sparse = JaggedTensor::from_lengths(3, &lengths, values);
    let (dense, labels) = (vec![0.5; 3 * SAMPLES], vec![1.0; SAMPLES]);
    Batch { size: SAMPLES, dense, sparse, labels }
}

/// This function runs in the child process. It trains steps whose outcome is read after the next
/// step was submitted to the device. The first step has the most ids.
fn run(model: ModelConfig, optimizer: Optimizer, precision: Precision) {
    let Some(log) = std::env::var_os("ROWMILL_STUB").map(PathBuf::from) else { return };
    let driver = Driver::cuda(0, options(log.parent().unwrap())).unwrap();
    let (mark, marks) = (driver.alloc(1).unwrap(), driver.stream().unwrap());
    let mut config = ranks::job(model, (optimizer, optimizer), 0.1, SAMPLES);
    config.training.precision = precision;
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let device = Cuda::new(driver, 1).unwrap();
    let mut context = RankContext::alone(device, Profiler::off()).unwrap();
    let mut model =
        Model::initial(context.device_queue(), &config, &plan, Rank(0), SAMPLES).unwrap();
    let mut before: Option<(Started<Cuda>, Batch)> = None;
    for (number, len) in (0..).zip([4, 4, 3, 0, 1, 4]) {
        // A memset of one byte marks the start of a step in the recorded calls.
        marks.fill(&mark, 0).unwrap();
        let batch = batch(len);
        let share = SampleShare { batch: &batch, first_sample: 0, global_size: SAMPLES };
        let started = model.start(&mut context, share, RunStep { number, factor: 1.0 }).unwrap();
        if let Some((started, batch)) = before.replace((started, batch.clone())) {
            let share = SampleShare { batch: &batch, first_sample: 0, global_size: SAMPLES };
            model.finish(&mut context, started, share).unwrap();
        }
    }
    marks.fill(&mark, 0).unwrap();
}

#[test]
fn dot_child() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    run(model(dot, Pooling::Sum), Optimizer::RowwiseAdagrad, Precision::F32);
}

#[test]
fn library_child() {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    run(model(dot, Pooling::Sum), Optimizer::Sgd, Precision::Bf16);
}

#[test]
fn cross_child() {
    let cross = Interaction::DcnV2 { layers: 2, rank: 3 };
    run(model(cross, Pooling::Mean), Optimizer::Lamb, Precision::F32);
}

/// This test runs in the child process. It checks that the operations of a recorded step have the
/// times of the device's events.
#[test]
fn recorded_child() {
    let Some(log) = std::env::var_os("ROWMILL_STUB").map(PathBuf::from) else { return };
    let driver = Driver::cuda(0, options(log.parent().unwrap())).unwrap();
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    let optimizer = Optimizer::Sgd;
    let config = ranks::job(model(dot, Pooling::Sum), (optimizer, optimizer), 0.1, SAMPLES);
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let clock = Clock::start();
    let info = RunInfo {
        rank: 0,
        world_size: 1,
        backend: "threads".to_owned(),
        pid: 1,
        main_tid: 1,
        host: "mill".to_owned(),
        threads: 1,
        device: "stub".to_owned(),
        base_time_ns: clock.base_time_ns(),
    };
    let profiler = Profiler::new(Recorder::new(info), clock);
    let mut context = RankContext::alone(Cuda::new(driver, 1).unwrap(), profiler).unwrap();
    let mut model =
        Model::initial(context.device_queue(), &config, &plan, Rank(0), SAMPLES).unwrap();
    let batch = batch(2);
    let share = SampleShare { batch: &batch, first_sample: 0, global_size: SAMPLES };
    context.profiler.begin_step(0);
    let begin = clock.now();
    model.train(&mut context, share, RunStep { number: 0, factor: 1.0 }).unwrap();
    context.profiler.end_step().unwrap();
    let recorder = context.profiler.recorder().unwrap();
    let spans = recorder.spans(0).unwrap();
    assert!(spans.len() > 10, "{spans:?}");
    // The stub records an event before and after each operation, and within some operations.
    let mut free = begin.0 - 1_000_000;
    for span in spans {
        let took = span.kernel_end.0 - span.kernel_start.0;
        assert!(took >= 250_000 && took % 250_000 == 0, "{span:?}");
        assert!(span.kernel_start.0 >= free && span.kernel_start.0 > span.start.0, "{span:?}");
        free = span.kernel_end.0;
    }
    // The step took at least 20 ms of device time, for which the host did not wait.
    let (first, last) = (spans[0], spans[spans.len() - 1]);
    assert!(last.kernel_end.0 - first.kernel_start.0 > 1_000_000 * spans.len() as i64 / 4);
    let folder = log.parent().unwrap().join("trace.json");
    recorder.write_kineto(&folder).unwrap();
    assert!(std::fs::read_to_string(folder).unwrap().contains("kernel"));
}

#[test]
fn a_recorded_step_has_device_times() {
    let Some(calls) = stub_library::calls("stub::recorded_child", Libraries::Driver, &[]) else {
        return;
    };
    let marks = calls.iter().filter(|call| call.starts_with("cuEventRecord")).count();
    assert!(marks > 20, "{calls:#?}");
}

#[test]
fn a_step_has_no_allocation_no_wait_and_the_same_calls_for_every_batch() {
    check("dot_child");
    check("cross_child");
    check("library_child");
}
