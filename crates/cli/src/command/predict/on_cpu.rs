//! Estimates the memory that a training step on a CPU needs, for the process as a whole. The times
//! are computed in `predict::step::cpu`.

use kernel_model::cpu::Machine;
use predict::step::largest_batch;
use schema::Schedule;
use train::memory::{MemoryMoment, WeightSource};

use setup::memory_check::{DataSize, RunSize};
use setup::workload::Workload;

/// Number of batches that a training run keeps in memory.
const BATCHES: u64 = 4;

/// Estimates the moment at which a run needs the most memory, for bags with `pooling` ids.
pub fn peak(workload: &Workload, pooling: u32, machine: &Machine) -> Option<MemoryMoment> {
    let config = &workload.job.config;
    let rows = BATCHES * config.training.batch_size as u64;
    let run = RunSize {
        job: &workload.job,
        data: DataSize::for_batches(config, rows, pooling as usize),
        tiling: &workload.tiling,
        threads: machine.threads as usize,
        processes: None,
        traced_steps: 0,
        weights: WeightSource::Initial,
        schedule: Schedule::SERIAL,
    };
    run.compare().estimate.peak().cloned()
}

/// Finds the largest batch size, over all ranks, with which the run fits into memory. Returns
/// `None` if even one sample needs too much.
pub fn max_batch_size(workload: &Workload, pooling: u32, machine: &Machine) -> Option<usize> {
    let fits = |batch_size: usize| {
        let mut job = workload.job.clone();
        job.config.training.batch_size = batch_size;
        let (tiling, plan) = (workload.tiling.clone(), workload.plan.clone());
        let sized = Workload { job, tiling, plan, features: workload.features.clone() };
        let peak = peak(&sized, pooling, machine);
        peak.is_some_and(|peak| peak.total.0 <= machine.spec.memory_bytes)
    };
    largest_batch(fits)
}
