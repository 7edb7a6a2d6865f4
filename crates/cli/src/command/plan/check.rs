//! The command `rowmill plan check`, which compares the predicted stages of a run's plan with those
//! that its ranks measured, and suggests a better plan.

use std::fs;
use std::path::Path;

use plan::check::{self, MeasuredRank, PlanCheck};
use plan::{PlanProblem, placement::CandidatePlan};
use predict::step::{Conditions, Models, Stage};
use schema::{HostLayout, JobConfig, ShardingPlan, TableRow};
use serde::{Deserialize, Serialize};
use setup::auto_plan::{cpu_topology, host_costs};
use setup::error::{Error, UsageError};
use setup::plan::PlanText;
use setup::table_output::{self, TableTarget};
use setup::workload::planned_features;
use setup::{Session, output, record, render};
use train::RankTiming;

use crate::args::PlanCheckArgs;

/// Share of the step by which a stage must differ to be explained.
const LARGE: f64 = 0.05;

/// A stage of a rank with its predicted and its measured time.
#[derive(Serialize, TableRow)]
struct StageRow {
    rank: u32,
    stage: &'static str,
    predicted_ns: f64,
    measured_ns: f64,
    /// Measured ÷ predicted time, if both are known.
    ratio: Option<f64>,
}

/// A line of `metrics.jsonl` with the times of ranks.
#[derive(Deserialize)]
struct TimedInterval {
    timing: Vec<RankTiming>,
}

/// The mean times of a run's ranks over its intervals, and the relative noise of its steps.
struct RunTimes {
    ranks: Vec<MeasuredRank>,
    intervals: usize,
    noise: f64,
}

/// Runs `rowmill plan check` and prints its result.
pub fn run(args: &PlanCheckArgs, session: &Session) -> Result<(), Error> {
    let run = &args.run;
    let intervals = read_intervals(run)?;
    let resumed = record::resumed(run, None, &[])?;
    let config = resumed.job.config;
    let fixed = resumed.plan.ok_or_else(|| UsageError::CheckedTables { run: run.clone() })?;
    let ranks = fixed.plan.world_size();
    if ranks < 2 || !fixed.plan.groups().is_single() {
        let groups = fixed.plan.groups().count.get();
        return Err(UsageError::CheckedRanks { run: run.clone(), ranks, groups }.into());
    }
    let times = RunTimes::from_intervals(run, &intervals, ranks)?;
    let hosts = record::placement(run).and_then(|placement| placement.hosts).unwrap_or(1);
    let per_host = (ranks as usize / hosts.max(1)).max(1);
    let layout = HostLayout::with_ranks_per_host(ranks as usize, per_host as u32)
        .map_err(|source| UsageError::Hosts { source })?;
    let run_plan = fixed.plan.on_hosts(layout.clone());
    let costs = host_costs(per_host, session);
    let threads = (session.threads / per_host).max(1) as f64;
    let topology = cpu_topology(hosts as u32, per_host as u32, threads);
    let models = Models::shipped()?;
    let features = planned_features(&config, None)?;
    let schedule = record::schedule(run).unwrap_or_default();
    let problem = PlanProblem {
        config: &config,
        features: &features,
        conditions: Conditions { schedule, ..Conditions::new(&topology, &models) },
        constraints: &config.plan,
    };
    let found = check::check(&problem, &costs, &run_plan, &times.ranks, times.noise)?;
    describe(&found, &times, session);
    suggest(args, &found, &config, &layout, session)?;
    let rows = stage_rows(&found, &times);
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Reads the intervals of a run that have times of ranks.
fn read_intervals(run: &Path) -> Result<Vec<TimedInterval>, Error> {
    let path = run.join("metrics.jsonl");
    // The last line of a killed run may end within a UTF-8 character.
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(_) if !path.exists() => {
            return Err(UsageError::NoMetrics { run: run.to_owned() }.into());
        }
        Err(error) => return Err(Error::io(&path, "read")(error)),
    };
    let lines = String::from_utf8_lossy(&bytes);
    let parsed = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(parsed.collect())
}

impl RunTimes {
    /// Returns the means over all intervals but the first, in which memory is touched for the first
    /// time.
    fn from_intervals(
        run: &Path,
        intervals: &[TimedInterval],
        ranks: u32,
    ) -> Result<Self, UsageError> {
        let warm = if intervals.len() > 1 { &intervals[1..] } else { intervals };
        let run = || run.to_owned();
        let Some(first) = warm.first() else { return Err(UsageError::NoTiming { run: run() }) };
        if let Some(other) = warm.iter().find(|one| one.timing.len() != ranks as usize) {
            let got = other.timing.len();
            return Err(UsageError::CheckedTiming { run: run(), expected: ranks, got });
        }
        if first.timing.iter().all(|rank| rank.lookup_ms + rank.update_ms <= 0.0) {
            return Err(UsageError::NoStageTimes { run: run() });
        }
        let mean = |rank: usize, value: &dyn Fn(&RankTiming) -> f64| {
            warm.iter().map(|one| value(&one.timing[rank])).sum::<f64>() / warm.len() as f64
        };
        let measured = |rank: usize| MeasuredRank {
            stages_ns: std::array::from_fn(|stage| {
                1e6 * mean(rank, &|timing| stage_ms(timing)[stage])
            }),
            step_ns: 1e6 * mean(rank, &|timing| timing.step_ms),
        };
        let steps: Vec<f64> = warm.iter().map(|one| one.timing[0].step_ms).collect();
        let step_ms = steps.iter().sum::<f64>() / steps.len() as f64;
        let squares = steps.iter().map(|ms| (ms - step_ms).powi(2)).sum::<f64>();
        let noise = (squares / steps.len() as f64).sqrt() / step_ms;
        let ranks = (0..ranks as usize).map(measured).collect();
        Ok(Self { ranks, intervals: warm.len(), noise })
    }
}

/// Returns the times of a rank in the order of [`Stage::ALL`].
fn stage_ms(timing: &RankTiming) -> [f64; 6] {
    [
        timing.input_distribution_ms,
        timing.lookup_ms,
        timing.pooled_exchange_ms,
        timing.dense_ms + timing.all_reduce_ms,
        timing.gradient_exchange_ms,
        timing.update_ms,
    ]
}

fn stage_rows(found: &PlanCheck, times: &RunTimes) -> Vec<StageRow> {
    let mut rows = Vec::new();
    for (predicted, measured) in found.predicted.ranks.iter().zip(&times.ranks) {
        let mut push = |stage: &'static str, predicted_ns: f64, measured_ns: f64| {
            let is_known = predicted_ns > 0.0 && measured_ns > 0.0;
            let ratio = is_known.then(|| measured_ns / predicted_ns);
            rows.push(StageRow { rank: predicted.rank, stage, predicted_ns, measured_ns, ratio });
        };
        for stage in Stage::ALL {
            let predicted_ns = predicted.stages[stage as usize].mean_ns;
            push(stage.name(), predicted_ns, measured.stages_ns[stage as usize]);
        }
        push("step", found.predicted.cost.step.mean_ns, measured.step_ns);
    }
    rows
}

/// Explains the stages that differ most.
fn describe(found: &PlanCheck, times: &RunTimes, session: &Session) {
    let count = times.ranks.len().max(1) as f64;
    let step_ns = times.ranks.iter().map(|rank| rank.step_ns).sum::<f64>() / count;
    let predicted_ns = found.predicted.cost.step.mean_ns;
    let noise = match times.intervals {
        1 => "of one interval, so its noise is unknown".to_owned(),
        count => format!("in the mean of {count} intervals, ± {:.1} %", 100.0 * times.noise),
    };
    session.console.say(format_args!(
        "predicted step {}, measured {} ({:.2} times as long) {noise}",
        render::nanos(predicted_ns),
        render::nanos(step_ns),
        step_ns / predicted_ns.max(1.0)
    ));
    for stage in Stage::ALL {
        let at = stage as usize;
        let measured = times.ranks.iter().map(|rank| rank.stages_ns[at]).sum::<f64>() / count;
        let ranks = found.predicted.ranks.iter();
        let predicted = ranks.map(|rank| rank.stages[at].mean_ns).sum::<f64>() / count;
        if (measured - predicted).abs() > LARGE * step_ns {
            session.console.say(format_args!(
                "{}: {} predicted, {} measured: {}",
                stage.name(),
                render::nanos(predicted),
                render::nanos(measured),
                meaning(stage, measured > predicted)
            ));
        }
    }
}

/// Returns what a difference between prediction and measurement means.
fn meaning(stage: Stage, is_slower: bool) -> &'static str {
    match (stage, is_slower) {
        (Stage::EmbeddingForward | Stage::EmbeddingBackward, true) => {
            "bags or ids differ from the statistics of the features, or the core is slower or busy"
        }
        (Stage::EmbeddingForward | Stage::EmbeddingBackward, false) => {
            "bags or ids differ from the statistics of the features, or the core is faster"
        }
        (Stage::Dense, true) => "products are slower, or ranks wait for the sum of dense gradients",
        (Stage::Dense, false) => "products are faster on this core",
        (_, true) => "the link is slower, or ranks wait for a slower one",
        (_, false) => "the link is faster, or more of the exchange is hidden",
    }
}

/// Prints whether another plan is better, and writes it.
fn suggest(
    args: &PlanCheckArgs,
    found: &PlanCheck,
    config: &JobConfig,
    hosts: &HostLayout,
    session: &Session,
) -> Result<(), Error> {
    let console = &session.console;
    let Some(better) = &found.better else {
        console
            .say("no plan is better by more than the noise, with prices that fit the measurement");
        return Ok(());
    };
    console.say(format_args!(
        "a better plan, with the prices of each stage multiplied by measured ÷ predicted: {} instead of {} \
         for the run's plan, {:.1} % less. Stages that the run hardly has, such as sums of replicated \
         tables, keep their predicted prices, so measure the plan before you keep it",
        render::nanos(better.step_ns),
        render::nanos(found.corrected_ns),
        100.0 * (1.0 - better.step_ns / found.corrected_ns)
    ));
    match &args.output {
        Some(path) => {
            output::put_json(path, &PlanText::new(&plan_of(&better.plan, config, hosts)?))
        }
        None => {
            console.say("write it with --output FILE.json, and train with --plan FILE.json");
            Ok(())
        }
    }
}

fn plan_of(
    plan: &CandidatePlan,
    config: &JobConfig,
    hosts: &HostLayout,
) -> Result<ShardingPlan, Error> {
    Ok(plan.to_sharding_plan(&config.model.tables, hosts).map_err(plan::Error::from)?)
}
