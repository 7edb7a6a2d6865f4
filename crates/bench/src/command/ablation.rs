//! `rowmill-bench ablation` measures how much of each exchange between ranks every overlap hides,
//! over a simulated slow link.
//!
//! The times are those that every training step measures of itself (`train::timing`). Commands of
//! rank 0 and sums of losses belong to a run, so the overlap of control messages has no effect
//! here.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use analyze::distribution;
use device::Cpu;
use schema::stage::{ActionBatch, ActionPart, Overlap, Resource};
use schema::{HostLayout, JobConfig, ReplicaGroups, Schedule, Stage, StepGraph};
use serde::Serialize;
use train::BUCKET_BYTES;
use train::Model;
use train::memory::WeightSource;
use train::model::ActionTime;

use super::ranks::BenchRanks;
use crate::args::BenchAblation;
use bench::batches;
use bench::sample::{STOPPING, place_in_round};
use bench::steps::make_batches;
use setup::config::ResolvedJob;
use setup::error::{EXIT_INTERRUPTED, Error};
use setup::memory_check::{self, DataSize};
use setup::plan::Tiling;
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, config, interrupt, render, rows};

/// The overlaps that are measured, with the names of their exchanges.
const EXCHANGES: [(Overlap, &str); 4] = [
    (Overlap::Input, "input_distribution"),
    (Overlap::Pooled, "pooled_exchange"),
    (Overlap::Gradient, "gradient_exchange"),
    (Overlap::AllReduce, "all_reduce"),
];

/// Number of schedules: serial, each overlap alone, and pipelined.
const SCHEDULES: usize = EXCHANGES.len() + 2;

/// The result of the measurement. Times are medians over all rounds.
#[derive(Debug, Serialize)]
struct AblationReport {
    config: String,
    batch_size: usize,
    ranks: u32,
    threads_per_rank: usize,
    delay_us: f64,
    /// Bandwidth of the simulated link; `None` if messages are not delayed.
    bandwidth_gb_per_s: Option<f64>,
    rounds: usize,
    steps_per_round: u64,
    schedules: Vec<ScheduleTimes>,
    exchanges: Vec<HiddenExchange>,
    pipelined_over_serial: f64,
    pipelined_over_serial_low: f64,
    pipelined_over_serial_high: f64,
    interrupted: bool,
}

/// Median times of a step under a schedule, in milliseconds.
#[derive(Debug, Serialize)]
struct ScheduleTimes {
    schedule: String,
    step_ms: f64,
    device_ms: f64,
    host_ms: f64,
    host_without_waits_ms: f64,
    exposed_input_distribution_ms: f64,
    exposed_pooled_exchange_ms: f64,
    exposed_gradient_exchange_ms: f64,
    exposed_all_reduce_ms: f64,
}

/// The part of an exchange that is hidden behind other stages.
#[derive(Debug, Serialize)]
struct HiddenExchange {
    exchange: &'static str,
    exchange_ms: f64,
    beside_ms: f64,
    hidden_alone_pct: f64,
    hidden_pipelined_pct: f64,
}

/// Times of a step in milliseconds, as means over ranks.
#[derive(Clone, Copy, Default)]
struct AblationStep {
    step_ms: f64,
    device_ms: f64,
    /// By exchange, in the order of [`EXCHANGES`].
    exposed_ms: [f64; EXCHANGES.len()],
    /// Computing beside each exchange in the pipelined schedule.
    beside_ms: [f64; EXCHANGES.len()],
}

/// The ranks, and what is measured of them.
struct AblationBench {
    ranks: BenchRanks,
    /// Stages beside each exchange in the pipelined schedule.
    beside: Vec<Vec<Stage>>,
    steps: u64,
}

/// Runs `rowmill-bench ablation` and prints its result.
pub fn run(args: &BenchAblation, session: &Session) -> Result<ExitCode, Error> {
    let job = config::job(&args.training.config, &args.training.set)?;
    rows::check_known(&job.config.model.tables, "rowmill-bench ablation")?;
    check_memory(args, &job, session)?;
    let stop = interrupt::stop_flag(STOPPING);
    session.console.say(format_args!("building {} and its batches", job.config.model.name));
    let mut bench = AblationBench::new(job.config, args, session.threads)?;
    let schedules = list_schedules();
    let mut rounds: Vec<[Vec<AblationStep>; SCHEDULES]> = Vec::new();
    let total = Some(args.timed.rounds * SCHEDULES as u64);
    let mut meter = Meter::start(session.console, "measuring", ProgressUnit::Measurements, total);
    while (rounds.len() as u64) < args.timed.rounds && !stop.load(Ordering::SeqCst) {
        rounds.push(bench.measure_round(&schedules, rounds.len(), &stop, &mut meter)?);
    }
    meter.finish();
    let interrupted = stop.load(Ordering::SeqCst);
    if interrupted {
        // Its steps were cut short.
        rounds.pop();
    }
    if rounds.len() < 2 {
        session.console.say("interrupted before the second round");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let report = bench.report(args, &job.origin, &schedules, &rounds, interrupted);
    session.console.report(&report, table)?;
    Ok(ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { 0 }))
}

fn check_memory(args: &BenchAblation, job: &ResolvedJob, session: &Session) -> Result<(), Error> {
    let batch_size = job.config.training.batch_size;
    let rows = batches::distinct_batches(batch_size).saturating_mul(batch_size) as u64;
    let run = memory_check::RunSize {
        job,
        data: DataSize::for_batches(&job.config, rows, args.training.pooling),
        tiling: &tiling(args)?,
        threads: session.threads,
        processes: None,
        traced_steps: 0,
        weights: WeightSource::Initial,
        schedule: Schedule::PIPELINED,
    };
    run.check(&run.compare())
}

/// Returns the tiling over ranks that are all on one host.
fn tiling(args: &BenchAblation) -> Result<Tiling, Error> {
    let hosts = HostLayout::on_one_host(args.training.ranks as usize);
    Ok(Tiling::new(args.sharding, hosts, ReplicaGroups::SINGLE)?)
}

fn list_schedules() -> [Schedule; SCHEDULES] {
    let mut schedules = [Schedule::PIPELINED; SCHEDULES];
    schedules[0] = Schedule::SERIAL;
    for (schedule, (overlap, _)) in schedules[1..].iter_mut().zip(EXCHANGES) {
        *schedule = Schedule::SERIAL.with(overlap);
    }
    schedules
}

impl AblationBench {
    fn new(config: JobConfig, args: &BenchAblation, threads: usize) -> Result<Self, Error> {
        let threads = args.training.threads_per_rank(threads);
        let plan = tiling(args)?.plan(&config.model.tables);
        let batch_size = config.training.batch_size;
        let count = batches::distinct_batches(batch_size);
        let host = device::Pool::new(threads);
        let batches = make_batches(&config, args.training.pooling, &host, count)?;
        let graph = StepGraph::new(&config, BUCKET_BYTES, Schedule::PIPELINED, &plan);
        let beside = EXCHANGES.map(|(overlap, _)| stages_beside(&graph, overlap)).to_vec();
        let ranks = BenchRanks::new(config, plan, &batches, threads, args.timed.link())?;
        Ok(Self { ranks, beside, steps: args.timed.steps })
    }

    /// Runs all schedules, in an order that changes from round to round.
    fn measure_round(
        &mut self,
        schedules: &[Schedule; SCHEDULES],
        round: usize,
        stop: &AtomicBool,
        meter: &mut Meter,
    ) -> Result<[Vec<AblationStep>; SCHEDULES], Error> {
        let mut steps: [Vec<AblationStep>; SCHEDULES] = Default::default();
        for turn in 0..SCHEDULES {
            let number = place_in_round(round, turn, SCHEDULES);
            if stop.load(Ordering::SeqCst) {
                break;
            }
            steps[number] = self.measure(schedules[number])?;
            meter.advance((round * SCHEDULES + turn + 1) as u64, "");
        }
        Ok(steps)
    }

    /// Trains some steps under a schedule, on new communicators.
    fn measure(&mut self, schedule: Schedule) -> Result<Vec<AblationStep>, Error> {
        let beside = &self.beside;
        let by_rank = self.ranks.measure(schedule, self.steps, &|step_ms, model| {
            measured_step(step_ms, model, beside)
        })?;
        Ok((0..self.steps as usize).map(|step| mean_of_ranks(&by_rank, step)).collect())
    }

    fn report(
        &self,
        args: &BenchAblation,
        origin: &str,
        schedules: &[Schedule; SCHEDULES],
        rounds: &[[Vec<AblationStep>; SCHEDULES]],
        interrupted: bool,
    ) -> AblationReport {
        let median_of = |number: usize, figure: &dyn Fn(&AblationStep) -> f64| {
            median(rounds.iter().flat_map(|round| &round[number]).map(figure))
        };
        let times = (0..SCHEDULES).map(|number| {
            let exposed = |at: usize| median_of(number, &|step| step.exposed_ms[at]);
            let host = |step: &AblationStep| step.step_ms - step.device_ms;
            ScheduleTimes {
                schedule: schedules[number].to_string(),
                step_ms: median_of(number, &|step| step.step_ms),
                device_ms: median_of(number, &|step| step.device_ms),
                host_ms: median_of(number, &host),
                host_without_waits_ms: median_of(number, &|step| {
                    host(step) - step.exposed_ms.iter().sum::<f64>()
                }),
                exposed_input_distribution_ms: exposed(0),
                exposed_pooled_exchange_ms: exposed(1),
                exposed_gradient_exchange_ms: exposed(2),
                exposed_all_reduce_ms: exposed(3),
            }
        });
        let exchanges = EXCHANGES.iter().enumerate().map(|(at, (_, exchange))| {
            let exposed_ms = |number| median_of(number, &|step| step.exposed_ms[at]);
            let (exchange_ms, beside_ms) =
                (exposed_ms(0), median_of(0, &|step| step.beside_ms[at]));
            let hidden_pct = |number| {
                100.0 * (exchange_ms - exposed_ms(number)) / exchange_ms.min(beside_ms).max(1e-9)
            };
            HiddenExchange {
                exchange,
                exchange_ms,
                beside_ms,
                hidden_alone_pct: hidden_pct(at + 1),
                hidden_pipelined_pct: hidden_pct(SCHEDULES - 1),
            }
        });
        let step_ms = |steps: &[AblationStep]| median(steps.iter().map(|step| step.step_ms));
        let ratio = |round: &[Vec<AblationStep>; SCHEDULES]| {
            step_ms(&round[SCHEDULES - 1]) / step_ms(&round[0])
        };
        let [low, mean, high] = mean_interval(&rounds.iter().map(ratio).collect::<Vec<_>>());
        AblationReport {
            config: origin.to_owned(),
            batch_size: self.ranks.batch_size(),
            ranks: args.training.ranks,
            threads_per_rank: self.ranks.threads(),
            delay_us: 1e6 * args.timed.delay.as_secs_f64(),
            bandwidth_gb_per_s: self.ranks.link().map(|link| link.bandwidth / 1e9),
            rounds: rounds.len(),
            steps_per_round: self.steps,
            schedules: times.collect(),
            exchanges: exchanges.collect(),
            pipelined_over_serial: mean,
            pipelined_over_serial_low: low,
            pipelined_over_serial_high: high,
            interrupted,
        }
    }
}

fn measured_step(step_ms: f64, model: &Model<Cpu>, beside: &[Vec<Stage>]) -> AblationStep {
    let mut measured = AblationStep { step_ms, ..AblationStep::default() };
    for (action, time) in model.graph().actions.iter().zip(model.action_times()) {
        let ActionTime { elapsed, waited } = *time;
        let at = EXCHANGES.iter().position(|(overlap, _)| action.stage.overlap() == Some(*overlap));
        if let Some(at) = at {
            measured.exposed_ms[at] += 1e3 * waited.as_secs_f64();
        }
        if action.stage.resource() != Resource::ComputeQueue {
            continue;
        }
        let elapsed_ms = 1e3 * elapsed.as_secs_f64();
        measured.device_ms += elapsed_ms;
        for (sum, stages) in measured.beside_ms.iter_mut().zip(beside) {
            *sum += if stages.contains(&action.stage) { elapsed_ms } else { 0.0 };
        }
    }
    measured
}

/// Lists the computing stages between the first start and the first end of an exchange.
fn stages_beside(graph: &StepGraph, overlap: Overlap) -> Vec<Stage> {
    let actions = &graph.actions;
    let at = |part| {
        let is_part = |action: &schema::stage::StageAction| {
            action.part == part && action.stage.overlap() == Some(overlap)
        };
        actions.iter().position(is_part)
    };
    let Some((start, finish)) = at(ActionPart::Start).zip(at(ActionPart::Finish)) else {
        return Vec::new();
    };
    let beside = match actions[start].batch {
        ActionBatch::This => &actions[start..finish],
        // It ends in the next step.
        ActionBatch::Next => &actions[start..],
    };
    let stages = beside.iter().map(|action| action.stage);
    stages.filter(|stage| stage.resource() == Resource::ComputeQueue).collect()
}

fn mean_of_ranks(by_rank: &[Vec<AblationStep>], step: usize) -> AblationStep {
    let mut mean = AblationStep::default();
    let share = 1.0 / by_rank.len() as f64;
    for steps in by_rank {
        let AblationStep { step_ms, device_ms, exposed_ms, beside_ms } = steps[step];
        mean.step_ms += share * step_ms;
        mean.device_ms += share * device_ms;
        mean.exposed_ms.iter_mut().zip(exposed_ms).for_each(|(sum, ms)| *sum += share * ms);
        mean.beside_ms.iter_mut().zip(beside_ms).for_each(|(sum, ms)| *sum += share * ms);
    }
    mean
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    distribution::median(&mut values.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

/// Returns the mean of at least two values between the ends of its 95 % interval.
pub(super) fn mean_interval(values: &[f64]) -> [f64; 3] {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let half = 1.96 * (squares / (count - 1.0) / count).sqrt();
    [mean - half, mean, mean + half]
}

fn table(report: &AblationReport) -> String {
    let link = match report.bandwidth_gb_per_s {
        None => "no delay".to_owned(),
        Some(rate) => format!("{} ms per message, {rate} GB/s", report.delay_us / 1e3),
    };
    let facts = render::facts(&[
        (
            "training",
            format!(
                "{}, B = {}, {} of {}, {link}",
                report.config,
                report.batch_size,
                render::counted(u64::from(report.ranks), "rank"),
                render::counted(report.threads_per_rank as u64, "thread"),
            ),
        ),
        (
            "pipelined ÷ serial",
            format!(
                "{:.3} ({:.3} to {:.3})",
                report.pipelined_over_serial,
                report.pipelined_over_serial_low,
                report.pipelined_over_serial_high
            ),
        ),
    ]);
    let number = |value: f64| format!("{value:.2}");
    let times = report.schedules.iter().map(|times| {
        let values = [
            times.step_ms,
            times.device_ms,
            times.host_ms,
            times.host_without_waits_ms,
            times.exposed_input_distribution_ms,
            times.exposed_pooled_exchange_ms,
            times.exposed_gradient_exchange_ms,
            times.exposed_all_reduce_ms,
        ];
        std::iter::once(times.schedule.clone()).chain(values.map(number)).collect()
    });
    let header = [
        "ms per step",
        "step",
        "device",
        "host",
        "without waits",
        "exposed input",
        "pooled",
        "gradient",
        "all-reduce",
    ];
    let schedules = render::grid(&header, &times.collect::<Vec<_>>());
    let hidden = report.exchanges.iter().map(|hidden| {
        vec![
            hidden.exchange.to_owned(),
            number(hidden.exchange_ms),
            number(hidden.beside_ms),
            format!("{:.0} %", hidden.hidden_alone_pct),
            format!("{:.0} %", hidden.hidden_pipelined_pct),
        ]
    });
    let header = ["exchange", "serial ms", "beside ms", "hidden alone", "hidden pipelined"];
    let exchanges = render::grid(&header, &hidden.collect::<Vec<_>>());
    format!("{facts}\n\n{schedules}\n\n{exchanges}")
}

#[cfg(test)]
mod tests {
    use schema::stage::Overlap;
    use schema::{Schedule, ShardingPlan, Stage, StepGraph};

    use super::{mean_interval, stages_beside};

    #[test]
    fn exchanges_run_beside_the_stages_of_the_graph() {
        let job = setup::config::job("dlrm-ddp", &[]).unwrap();
        let plan = ShardingPlan::table_wise(&job.config.model.tables, 2);
        let graph = StepGraph::new(&job.config, 1 << 20, Schedule::PIPELINED, &plan);
        let names = |overlap| {
            let stages = stages_beside(&graph, overlap).into_iter();
            stages.map(Stage::name).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(Overlap::Pooled).into_iter().collect::<Vec<_>>(), ["bottom_mlp"]);
        assert_eq!(names(Overlap::Gradient).into_iter().collect::<Vec<_>>(), ["dense_backward"]);
        let beside = names(Overlap::AllReduce);
        assert_eq!(
            beside.into_iter().collect::<Vec<_>>(),
            ["dense_backward", "interaction_backward"]
        );
        assert!(names(Overlap::Input).contains("top_mlp"));
    }

    #[test]
    fn an_interval_surrounds_the_mean() {
        assert_eq!(mean_interval(&[2.0, 2.0]), [2.0; 3]);
        let [low, mean, high] = mean_interval(&[1.0, 3.0]);
        assert!(low < 1.0 && mean == 2.0 && high > 3.0);
    }
}
