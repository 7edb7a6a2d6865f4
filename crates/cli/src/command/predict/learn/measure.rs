//! Measures training steps of drawn configurations on this machine's CPU, operation by operation.
//! Between the configurations, it measures rounds of lookups without a model.

use std::sync::atomic::{AtomicBool, Ordering};

use device::Cpu;
use device::limits::RowSet;
use kernel_model::cpu::{Machine, MeasuredStep, MeasuredSteps, MeasuredTables};
use trace::OpSpan;

use super::alone::{self, MeasuredCpu, SAMPLING};
use super::draw::{self, BASE, RandomConfiguration};
use crate::args::PredictLearn;
use crate::command::predict::kernel::hardware::this_machine;
use ::bench::sample::{BenchSample, Judge, median};
use ::bench::steps::{BenchStep, record_steps};
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, config};

/// Number of steps that are recorded in each attempt at a configuration.
const STEPS: usize = 6;
/// Largest number of attempts at a configuration. No further attempt is made once half of [`STEPS`]
/// steps were undisturbed.
const TRIES: usize = 3;
/// Number of rounds of lookups. A part of the configurations is measured after each round. The
/// rounds are thus minutes apart and differ as much as separate runs.
const ROUNDS: u64 = 6;
/// Bytes on which the read bandwidth is measured, which are more than any cache holds.
const STREAM_BYTES: usize = 256 << 20;

/// Measures steps and lookups on this machine. Ctrl-C ends the measurement early and keeps the
/// steps measured so far.
pub fn run(
    args: &PredictLearn,
    stop: &AtomicBool,
    session: &Session,
) -> Result<MeasuredSteps, Error> {
    let cpu = Cpu::new(session.threads);
    let machine = machine(session);
    let rows = RowSet::new(&cpu.pool, STREAM_BYTES, 256);
    let mut bench = MeasuredCpu { cpu, rows, threads: session.threads, conditions: Vec::new() };
    let mut tables: Vec<MeasuredTables> = (0..u64::from(args.tables))
        .map(|number| draw::draw_tables(args.seed, number))
        .map(|tables| MeasuredTables { tables, rounds: Vec::new() })
        .collect();
    let mut steps = Vec::new();
    let configurations = u64::from(args.configurations);
    let total = configurations + ROUNDS * tables.len() as u64;
    let mut meter =
        Meter::start(session.console, "measuring", ProgressUnit::Measurements, Some(total));
    let mut done = 0;
    for round in 0..ROUNDS {
        for one in &mut tables {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            one.rounds.extend(alone::measure_round(&mut bench, &one.tables, stop)?);
            done += 1;
            meter.advance(done, "");
        }
        for number in configurations * round / ROUNDS..configurations * (round + 1) / ROUNDS {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            steps.extend(
                bench.measure_configuration(&draw::draw_configuration(args.seed, number), stop)?,
            );
            done += 1;
            meter.advance(done, "");
        }
    }
    meter.finish();
    // After Ctrl-C, the remaining tables have no measured round.
    tables.retain(|one| !one.rounds.is_empty());
    Ok(MeasuredSteps { machine, steps, tables })
}

fn machine(session: &Session) -> Machine {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let kibibytes = text.trim().strip_suffix('K').and_then(|size| size.parse::<u64>().ok());
        kibibytes.unwrap_or_default() << 10
    };
    let threads = session.threads as u32;
    Machine {
        spec: this_machine(session),
        private_cache_bytes: size(2) * u64::from(threads),
        threads,
    }
}

impl MeasuredCpu {
    /// Measures the steps of one configuration. Returns `None` if Ctrl-C ends it before the first
    /// step.
    fn measure_configuration(
        &mut self,
        drawn: &RandomConfiguration,
        stop: &AtomicBool,
    ) -> Result<Option<MeasuredStep>, Error> {
        let Self { cpu, rows, threads, conditions } = self;
        let stream = || rows.stream_gb_per_s(cpu);
        let job = config::job(BASE, &drawn.set)?;
        let mut taken: Vec<BenchSample<BenchStep>> = Vec::new();
        let mut rates = vec![stream(), stream()];
        for _ in 0..TRIES {
            let (pooling, own) = (drawn.pooling as usize, Cpu::new(*threads));
            let steps = record_steps(&job.config, pooling, STEPS, own, stop)?;
            rates.extend([stream(), stream()]);
            conditions.extend(steps.iter().map(|step| step.conditions));
            taken.extend(steps);
            let judge = Judge::new(&SAMPLING, conditions.iter());
            let good = taken.iter().filter(|step| judge.accepts(&step.conditions)).count();
            if 2 * good >= STEPS || stop.load(Ordering::SeqCst) {
                break;
            }
        }
        if taken.is_empty() {
            return Ok(None);
        }
        let kept = Judge::new(&SAMPLING, conditions.iter()).kept(&taken);
        let steps: Vec<&BenchStep> = kept.values().collect();
        // If most steps were disturbed, the shortest step is the best estimate of an undisturbed
        // one.
        let usual = |ns: Vec<f64>| {
            let least = ns.iter().copied().fold(f64::INFINITY, f64::min);
            (if kept.is_trusted { median(ns) } else { least }).max(1.0)
        };
        let names = steps[0].spans.iter().map(|span| span.op.name().to_owned());
        let op = |(at, name): (usize, String)| {
            let ns = |step: &&BenchStep| (step.spans[at].end.0 - step.spans[at].start.0) as f64;
            (name, usual(steps.iter().map(ns).collect()))
        };
        let ops: Vec<(String, f64)> = names.enumerate().map(op).collect();
        // The time between operations is the step's time minus the times of the same step's
        // operations. If the operations of another step were subtracted, the difference would be
        // arbitrary.
        let ns = |span: &OpSpan| (span.end.0 - span.start.0) as f64;
        let beside =
            |step: &&BenchStep| 1e9 * step.seconds - step.spans.iter().map(ns).sum::<f64>();
        let between = usual(steps.iter().map(beside).collect());
        Ok(Some(MeasuredStep {
            config: BASE.to_owned(),
            set: drawn.set.clone(),
            pooling: drawn.pooling,
            steps: [if kept.is_trusted { steps.len() as u32 } else { 0 }, taken.len() as u32],
            stream_gb_per_s: rates.into_iter().fold(0.0, f64::max),
            step_ns: ops.iter().map(|op| op.1).sum::<f64>() + between,
            ops,
        }))
    }
}
