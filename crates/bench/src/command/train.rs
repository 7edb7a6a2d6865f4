//! `rowmill-bench train` measures training steps on generated batches in memory, with the time of
//! each operation.
//!
//! The time of a step is measured without recording. The breakdown comes from other steps, which
//! are recorded. The timed steps and the recorded steps take turns with the limits of the machine.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use comm::world;
use device::backend::Cuda;
use device::{Backend, Cpu};
use schema::{
    HostLayout, IdLaw, JobConfig, ModelConfig, ReplicaGroups, Schedule, SyntheticConfig,
    TableConfig,
};
use serde::Serialize;
use train::memory::WeightSource;
use train::run::OpenDevice;
use train::run::run_info;

use super::limit::{LimitBench, MeasuredLimits};
use super::operation;
use super::operation::Breakdown;
use crate::args::BenchTrain;
use bench::batches::{self};
use bench::sample::PATIENCE;
use bench::sample::{BenchSample, Conditions, Judge, Quality, Watch};
use bench::sample::{STOPPING, conclude};
use bench::steps::{BenchStep, BenchSteps, WARM_UP};
use setup::args::Sharding;
use setup::config::ResolvedJob;
use setup::device::ComputeDevice;
use setup::error::{EXIT_INTERRUPTED, Error};
use setup::interrupt;
use setup::memory_check::{self, DataSize};
use setup::on_device;
use setup::plan::Tiling;
use setup::progress::{Meter, ProgressUnit};
use setup::render;
use setup::{Session, config, rows};

mod record;

/// Number of recorded steps per turn.
const RECORDED: u64 = 2;

/// Medians over the accepted samples of one run.
#[derive(Debug, Serialize)]
struct TrainReport {
    config: String,
    device: String,
    batch_size: usize,
    pooling: usize,
    threads: usize,
    optimizer: schema::Optimizer,
    dense_optimizer: schema::Optimizer,
    /// Distribution of the ids of all tables except those in the next field.
    distribution: IdLaw,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    distribution_of_tables: BTreeMap<String, IdLaw>,
    rows_cap: Option<u64>,
    precision: schema::Precision,
    /// Mean loss of the last step before the timed steps. The loss is equal in every run of a
    /// configuration.
    warm_up_loss: f64,
    samples_per_s: f64,
    samples_per_s_min: f64,
    samples_per_s_max: f64,
    step_ms: f64,
    step_ms_min: f64,
    step_ms_max: f64,
    /// Median time of the recorded steps, which take turns with unrecorded ones.
    recorded_step_ms: f64,
    /// Time that recording adds to a step, in percent of an unrecorded step.
    recording_pct: f64,
    #[serde(flatten)]
    quality: Quality,
    #[serde(flatten)]
    limits: MeasuredLimits,
    #[serde(flatten)]
    breakdown: Breakdown,
    /// Number of steps between two waits for the device.
    wait_every: usize,
    steps: Vec<TimedStep>,
    interrupted: bool,
}

/// One sample, whose time is the mean of `wait_every` steps.
#[derive(Debug, Serialize)]
struct TimedStep {
    ms: f64,
    accepted: bool,
    #[serde(flatten)]
    conditions: Conditions,
}

/// All samples of one run of the benchmark.
#[derive(Default)]
struct TrainSamples {
    warm_up_loss: f64,
    /// For each sample, the mean seconds of an unrecorded step.
    steps: Vec<BenchSample<f64>>,
    recorded: Vec<BenchSample<BenchStep>>,
}

/// Runs `rowmill-bench train` and prints its result.
pub fn run(args: &BenchTrain, session: &Session) -> Result<ExitCode, Error> {
    let job = job(args)?;
    check_memory(args, &job, session)?;
    let device = ComputeDevice::open(args.device, session)?;
    on_device!(&device, open => run_on(open, args, &job, session))
}

fn run_on<B: LimitedHost>(
    open: impl OpenDevice<B>,
    args: &BenchTrain,
    job: &ResolvedJob,
    session: &Session,
) -> Result<ExitCode, Error> {
    let stop = interrupt::stop_flag(STOPPING);
    session.console.say(format_args!("building {} and its batches", job.config.model.name));
    let mut bench = TrainBench::new(&job.config, args, open(session.threads)?)?;
    let samples = bench.measure(args, session, &stop)?;
    let interrupted = stop.load(Ordering::SeqCst);
    if samples.steps.is_empty() || samples.recorded.is_empty() {
        session.console.say("interrupted before the first sample");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if let Some(folder) = &args.trace {
        let judge = samples.judge(args, &bench.limits);
        let info = run_info(&world(1)[0], session.threads, bench.steps.clock);
        record::write(folder, judge.kept(&samples.recorded).values(), info)?;
    }
    let report = report(&samples, &bench, args, job, interrupted);
    conclude(session, &report.quality, interrupted, &report, table)
}

fn check_memory(args: &BenchTrain, job: &ResolvedJob, session: &Session) -> Result<(), Error> {
    let batch_size = job.config.training.batch_size;
    let rows = batches::distinct_batches(batch_size).saturating_mul(batch_size) as u64;
    let run = memory_check::RunSize {
        job,
        data: DataSize::for_batches(&job.config, rows, args.pooling),
        tiling: &Tiling::Made(Sharding::Table, HostLayout::on_one_host(1), ReplicaGroups::SINGLE),
        threads: session.threads,
        processes: None,
        traced_steps: 0,
        weights: WeightSource::Initial,
        schedule: Schedule::SERIAL,
    };
    run.check(&run.compare())
}

fn job(args: &BenchTrain) -> Result<ResolvedJob, Error> {
    let mut overrides = args.set.clone();
    let mut set = |key: &str, value: Option<String>| {
        overrides.extend(value.map(|value| (key.to_owned(), value)));
    };
    set("training.batch_size", args.batch_size.map(|size| size.to_string()));
    set("training.precision", args.precision.map(|precision| precision.to_string()));
    set("model.rows_cap", args.rows_cap.map(|cap| cap.to_string()));
    set("optimizer.sparse.kind", args.optimizer.clone());
    let mut job = config::job(&args.config, &overrides)?;
    rows::check_known(&job.config.model.tables, "rowmill-bench train")?;
    if args.distribution.is_some() {
        job.config.synthetic =
            SyntheticConfig { ids: args.distribution.clone(), ..SyntheticConfig::default() };
    }
    Ok(job)
}

/// The model that is trained, and the limits that are measured with it.
struct TrainBench<B: Backend> {
    steps: BenchSteps<B>,
    limits: LimitBench,
}

/// A device whose host has a CPU on which limits can be measured.
trait LimitedHost: Backend {
    fn cores(&self) -> &Cpu;
}

impl LimitedHost for Cpu {
    fn cores(&self) -> &Cpu {
        self
    }
}

impl LimitedHost for Cuda {
    fn cores(&self) -> &Cpu {
        self.host_cpu()
    }
}

impl<B: LimitedHost> TrainBench<B> {
    fn new(config: &JobConfig, args: &BenchTrain, device: B) -> Result<Self, Error> {
        let table_bytes = config.model.table_bytes(schema::Optimizer::Sgd).0;
        let limits = LimitBench::new(device.host(), table_bytes, row_bytes_mean(&config.model));
        let batches = batches::distinct_batches(config.training.batch_size);
        Ok(Self { steps: BenchSteps::new(config, args.pooling, batches, device)?, limits })
    }

    fn measure(
        &mut self,
        args: &BenchTrain,
        session: &Session,
        stop: &AtomicBool,
    ) -> Result<TrainSamples, Error> {
        let per_turn = args.steps;
        let total = per_turn * args.sampling.repeats;
        let mut meter =
            Meter::start(session.console, "measuring", ProgressUnit::Steps, Some(total));
        let warm_up_loss = self.steps.train(WARM_UP)?;
        let mut samples = TrainSamples { warm_up_loss, ..TrainSamples::default() };
        for turn in 0..PATIENCE * args.sampling.repeats {
            if turn >= args.sampling.repeats && samples.is_enough(args, &self.limits) {
                break;
            }
            // Turns beyond the requested ones replace disturbed samples, so the total grows with
            // them.
            let total = per_turn * (turn + 1).max(args.sampling.repeats);
            meter.set_total(Some(total));
            self.limits.measure(self.steps.context.device.cores());
            for _ in 0..per_turn {
                if stop.load(Ordering::SeqCst) {
                    return Ok(samples);
                }
                let watch = Watch::start(self.steps.context.device.host());
                self.steps.train(args.wait_every)?;
                let host = self.steps.context.device.host();
                samples.steps.push(watch.sample(host, |seconds| seconds / args.wait_every as f64));
                meter.advance(samples.steps.len() as u64, "");
            }
            let recorded = if args.trace.is_some() { per_turn } else { RECORDED };
            for _ in 0..recorded {
                samples.recorded.push(self.steps.record_step()?);
            }
            self.limits.measure(self.steps.context.device.cores());
        }
        meter.finish();
        Ok(samples)
    }
}

impl TrainSamples {
    fn judge(&self, args: &BenchTrain, limits: &LimitBench) -> Judge {
        let steps = self.steps.iter().map(|sample| &sample.conditions);
        let recorded = self.recorded.iter().map(|sample| &sample.conditions);
        Judge::new(&args.sampling, steps.chain(recorded).chain(limits.conditions()))
    }

    /// Returns whether at least half of the requested steps are accepted, and enough samples of
    /// everything else.
    fn is_enough(&self, args: &BenchTrain, limits: &LimitBench) -> bool {
        let judge = self.judge(args, limits);
        let good = self.steps.iter().filter(|sample| judge.accepts(&sample.conditions)).count();
        2 * good as u64 >= args.steps * args.sampling.repeats
            && judge.kept(&self.recorded).is_trusted
            && limits.are_trusted(&judge)
    }
}

fn report<B: LimitedHost>(
    taken: &TrainSamples,
    bench: &TrainBench<B>,
    args: &BenchTrain,
    job: &ResolvedJob,
    interrupted: bool,
) -> TrainReport {
    let judge = taken.judge(args, &bench.limits);
    let (kept, recorded) = (judge.kept(&taken.steps), judge.kept(&taken.recorded));
    let limits = bench.limits.medians(&judge);
    let batch_size = job.config.training.batch_size;
    let rate = kept.spread(|seconds| batch_size as f64 / seconds);
    let step = kept.spread(|seconds| 1e3 * seconds);
    let recorded_step_ms = recorded.median(|step| 1e3 * step.seconds);
    let quality = judge.quality(
        taken.steps.iter().map(|sample| &sample.conditions),
        kept.conditions(),
        kept.is_trusted && recorded.is_trusted && bench.limits.are_trusted(&judge),
    );
    let timed = |sample: &BenchSample<f64>| TimedStep {
        ms: 1e3 * sample.value,
        accepted: judge.accepts(&sample.conditions),
        conditions: sample.conditions,
    };
    TrainReport {
        config: job.origin.clone(),
        device: args.device.device.to_string(),
        batch_size,
        pooling: args.pooling,
        threads: bench.steps.context.device.host().threads(),
        optimizer: job.config.optimizer.sparse.kind,
        dense_optimizer: job.config.optimizer.dense.kind,
        distribution: job.config.synthetic.ids.clone().unwrap_or_default(),
        distribution_of_tables: job.config.synthetic.tables.clone(),
        rows_cap: job.config.model.rows_cap,
        precision: job.config.training.precision,
        warm_up_loss: taken.warm_up_loss,
        samples_per_s: rate.median,
        samples_per_s_min: rate.min,
        samples_per_s_max: rate.max,
        step_ms: step.median,
        step_ms_min: step.min,
        step_ms_max: step.max,
        recorded_step_ms,
        recording_pct: 100.0 * (recorded_step_ms - step.median) / step.median,
        quality,
        limits,
        breakdown: Breakdown::new(&recorded, &limits),
        wait_every: args.wait_every,
        steps: taken.steps.iter().map(timed).collect(),
        interrupted,
    }
}

/// Returns the mean bytes of an embedding row, weighted by the number of vectors per sample.
fn row_bytes_mean(model: &ModelConfig) -> usize {
    let row_bytes = |table: &TableConfig| {
        table.dim * table.data_type.bytes() * table.vectors() * table.features.len()
    };
    model.tables.iter().map(row_bytes).sum::<usize>() / model.sparse_vectors().max(1)
}

fn table(report: &TrainReport) -> String {
    let breakdown = &report.breakdown;
    let mut facts = vec![
        (
            "training",
            format!(
                "{} on {}, {}, B = {}, {} ids per bag, {}",
                report.config,
                report.device,
                report.precision,
                report.batch_size,
                report.pooling,
                render::counted(report.threads as u64, "thread")
            ),
        ),
        (
            "samples",
            format!(
                "{} ({} to {})",
                render::rate(report.samples_per_s),
                render::count(report.samples_per_s_min as u64),
                render::count(report.samples_per_s_max as u64)
            ),
        ),
        (
            "step",
            format!(
                "{:.2} ms ({:.2} to {:.2})",
                report.step_ms, report.step_ms_min, report.step_ms_max
            ),
        ),
        ("limits here", report.limits.text()),
        (
            "matrix products",
            format!(
                "{:.0} GFLOP/s, {:.1} % of the {} peak",
                breakdown.gemm_gflop_per_s,
                breakdown.gemm_pct_of_peak,
                report.limits.peak_name(report.precision)
            ),
        ),
        ("everything else", format!("{:.1} % of the step", breakdown.rest_pct_of_step)),
    ];
    facts.extend(report.quality.rows());
    let ops = operation::ops_grid(&breakdown.ops);
    let gemms = operation::gemms_grid(&breakdown.gemms);
    format!("{}\n\n{ops}\n\n{gemms}", render::facts(&facts))
}

#[cfg(test)]
mod tests {
    use super::row_bytes_mean;
    use setup::config;

    #[test]
    fn the_rows_of_the_limits_are_as_long_as_those_of_the_tables() {
        let mean_row_bytes = |tables: &str| {
            let job = config::job("adult-income", &[("model.tables".into(), tables.into())]);
            row_bytes_mean(&job.unwrap().config.model)
        };
        let first = r#"{ name = "workclass", rows = 9, dim = 8, data_type = "f16" }"#;
        let second = r#"{ name = "education", rows = 9, dim = 8, pooling = "none""#;
        assert_eq!(mean_row_bytes(&format!("[{first}]")), 16);
        assert_eq!(
            mean_row_bytes(&format!("[{first}, {second}, sequence_length = 3 }}]")),
            (16 + 3 * 32) / 4
        );
    }
}
