//! The command `rowmill plan check`, which compares the predicted stages of a run's plan with those
//! that its ranks measured, and suggests a better plan.

use std::fs;
use std::path::{Path, PathBuf};

use kernel_model::host_costs::HostRatios;
use plan::check::{self, MeasuredRank, PlanCheck};
use plan::{PlanProblem, PlanTarget, placement::CandidatePlan};
use predict::step::{Conditions, Models, STAGES, Stage};
use schema::{HostLayout, JobConfig, ShardingPlan, TableRow};
use serde::{Deserialize, Serialize};
use setup::args::OutputFormat;
use setup::auto_plan::{cpu_topology, host_costs};
use setup::error::{Error, UsageError};
use setup::plan::PlanText;
use setup::render::nanos;
use setup::table_output::{self, TableTarget};
use setup::workload::planned_features;
use setup::{Session, output, record};
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

/// The whole result of a check, as programs read it.
#[derive(Serialize)]
struct CheckReport {
    intervals: usize,
    /// Standard deviation of the steps of intervals, relative to their mean.
    noise_pct: f64,
    predicted_step_ns: f64,
    measured_step_ns: f64,
    /// Part of the measured step that corrected prices of its stages do not explain.
    unpriced_ns: f64,
    ratios: CorrectedPrices,
    differences: Vec<StageDifference>,
    verdict: Verdict,
    /// What the best plan of the search gains at these prices, whether it is suggested or not.
    best_gain_pct: f64,
    /// Step of the better plan, if there is one.
    better_step_ns: Option<f64>,
    gain_pct: Option<f64>,
    /// File to which the better plan was written.
    better_plan: Option<PathBuf>,
    stages: Vec<StageRow>,
}

/// Whether the run should keep its plan.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// No plan is better by more than the noise.
    Keep,
    BetterPlan,
}

/// Measured ÷ predicted times, by which prices are multiplied.
#[derive(Serialize)]
struct CorrectedPrices {
    lookup: f64,
    embedding_update: f64,
    dense: f64,
    exchange: f64,
}

/// A stage whose prediction and measurement differ, as means over ranks.
#[derive(Serialize)]
struct StageDifference {
    stage: &'static str,
    predicted_ns: f64,
    measured_ns: f64,
    why: &'static str,
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
    let threads = run_threads(run, per_host, session)?;
    let costs = host_costs(per_host, threads);
    let topology = cpu_topology(hosts as u32, per_host as u32, threads as f64);
    let models = Models::shipped()?;
    let features = planned_features(&config, None)?;
    let schedule = record::schedule(run).unwrap_or_default();
    let problem = PlanProblem {
        config: &config,
        features: &features,
        conditions: Conditions { schedule, ..Conditions::new(&topology, &models) },
        constraints: &config.plan,
        target: PlanTarget::Rowmill,
    };
    let found = check::check(&problem, &costs, &run_plan, &times.ranks, times.noise)?;
    let better_plan = write_better(args, &found, &config, &layout)?;
    let report = CheckReport::new(&found, &times, better_plan);
    report.describe(session);
    match session.console.format {
        OutputFormat::Json => session.console.json(&report),
        _ => table_output::write_rows(session.console, &report.stages, TableTarget::default()),
    }
}

/// Returns the number of threads of each rank of a run, which are those of its record.
fn run_threads(run: &Path, per_host: usize, session: &Session) -> Result<usize, UsageError> {
    let Some(recorded) = record::threads_per_rank(run) else {
        let assumed = (session.threads / per_host).max(1);
        session.console.say(format_args!(
            "threads per rank: {assumed}, because run.json of this earlier version does not record \
             them and --threads divides among the {per_host} ranks of a host"
        ));
        return Ok(assumed);
    };
    let given = session.has_own_threads.then_some((session.threads / per_host).max(1));
    match given.filter(|given| *given != recorded) {
        None => Ok(recorded),
        Some(got) => Err(UsageError::CheckedThreads { run: run.to_owned(), recorded, got }),
    }
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
            copies_ns: [0, 1].map(|at| 1e6 * mean(rank, &|timing| copies_ms(timing)[at])),
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
fn stage_ms(timing: &RankTiming) -> [f64; STAGES] {
    [
        timing.input_distribution_ms,
        timing.lookup_ms,
        timing.pooled_exchange_ms,
        timing.dense_ms,
        timing.all_reduce_ms,
        timing.gradient_exchange_ms,
        timing.update_ms,
    ]
}

/// Returns the times of the exchanges of pooled vectors and of gradients without waits.
fn copies_ms(timing: &RankTiming) -> [f64; 2] {
    [
        timing.pooled_exchange_ms - timing.exposed_pooled_exchange_ms,
        timing.gradient_exchange_ms - timing.exposed_gradient_exchange_ms,
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

impl CheckReport {
    fn new(found: &PlanCheck, times: &RunTimes, better_plan: Option<PathBuf>) -> Self {
        let HostRatios { lookup, update, dense, exchange } = found.ratios;
        let better_step_ns = found.better.as_ref().map(|better| better.step_ns);
        Self {
            intervals: times.intervals,
            noise_pct: 100.0 * times.noise,
            predicted_step_ns: found.predicted.cost.step.mean_ns,
            measured_step_ns: found.measured_ns,
            unpriced_ns: found.unpriced_ns,
            ratios: CorrectedPrices { lookup, embedding_update: update, dense, exchange },
            differences: differences(found, times),
            verdict: if found.better.is_some() { Verdict::BetterPlan } else { Verdict::Keep },
            best_gain_pct: 100.0 * (1.0 - found.best_ns / found.measured_ns),
            better_step_ns,
            gain_pct: better_step_ns.map(|ns| 100.0 * (1.0 - ns / found.measured_ns)),
            better_plan,
            stages: stage_rows(found, times),
        }
    }

    /// Prints the step, the stages that differ most, and whether another plan is better.
    fn describe(&self, session: &Session) {
        let console = &session.console;
        let noise = match self.intervals {
            1 => "of one interval, so its noise is unknown".to_owned(),
            count => format!("in the mean of {count} intervals, ± {:.1} %", self.noise_pct),
        };
        let [predicted, measured] = [self.predicted_step_ns, self.measured_step_ns].map(nanos);
        let ratio = self.measured_step_ns / self.predicted_step_ns.max(1.0);
        console.say(format_args!(
            "predicted step {predicted}, measured {measured} ({ratio:.2} times as long) {noise}"
        ));
        for one in &self.differences {
            let [predicted, measured] = [one.predicted_ns, one.measured_ns].map(nanos);
            console.say(format_args!(
                "{}: {predicted} predicted, {measured} measured: {}",
                one.stage, one.why
            ));
        }
        let CorrectedPrices { lookup, embedding_update, dense, exchange } = self.ratios;
        console.say(format_args!(
            "measured ÷ predicted time, without waits: lookup {lookup:.2}, \
             embedding_update {embedding_update:.2}, dense {dense:.2}, copies of messages {exchange:.2}"
        ));
        console.say(format_args!(
            "with prices multiplied by these ratios, the predicted step of this plan is {}; its \
             difference of {} to the measured step, such as waits, is taken to be the same for all \
             plans",
            nanos(self.measured_step_ns - self.unpriced_ns),
            nanos(self.unpriced_ns.abs())
        ));
        let (Some(step_ns), Some(gain)) = (self.better_step_ns, self.gain_pct) else {
            console.say(format_args!(
                "no plan is better by more than the noise at these prices; the best one gains {:.1} %",
                self.best_gain_pct
            ));
            return;
        };
        console.say(format_args!(
            "a better plan at these prices takes {} instead of {measured}, {gain:.1} % less; measure \
             the plan before you keep it",
            nanos(step_ns)
        ));
        match &self.better_plan {
            Some(path) => console.say(format_args!("plan written to {}", path.display())),
            None => {
                console.say("write it with --output FILE.json, and train with --plan FILE.json");
            }
        }
    }
}

/// Lists the stages whose means over ranks differ by more than [`LARGE`] of the step.
fn differences(found: &PlanCheck, times: &RunTimes) -> Vec<StageDifference> {
    let count = times.ranks.len().max(1) as f64;
    let difference = |stage: Stage| {
        let at = stage as usize;
        let measured_ns = times.ranks.iter().map(|rank| rank.stages_ns[at]).sum::<f64>() / count;
        let ranks = found.predicted.ranks.iter();
        let predicted_ns = ranks.map(|rank| rank.stages[at].mean_ns).sum::<f64>() / count;
        let is_large = (measured_ns - predicted_ns).abs() > LARGE * found.measured_ns;
        // The rank that waited least shows the time of an exchange itself.
        let measured = times.ranks.iter().map(|rank| rank.stages_ns[at]);
        let is_only_wait = measured.fold(f64::INFINITY, f64::min) <= predicted_ns;
        is_large.then(|| StageDifference {
            stage: stage.name(),
            predicted_ns,
            measured_ns,
            why: match measured_ns > predicted_ns {
                true => meaning_of_longer(stage, is_only_wait),
                false => meaning_of_shorter(stage),
            },
        })
    };
    Stage::ALL.into_iter().filter_map(difference).collect()
}

/// Returns what it means that a stage takes longer than predicted. `is_only_wait` is true if the
/// exchange itself was as fast as predicted, so that the other ranks only waited in it.
fn meaning_of_longer(stage: Stage, is_only_wait: bool) -> &'static str {
    match stage {
        Stage::InputDistribution => {
            "the ids of the next batch are distributed beside the computation, so the prediction \
             has this work in the stages that it slows down; the measured time is the wait for the \
             rest"
        }
        Stage::Lookup | Stage::EmbeddingUpdate => {
            "bags or ids differ from the statistics of the features, or the core is slower or busy"
        }
        Stage::Dense => "products are slower on this core",
        _ if is_only_wait => {
            "ranks wait for a slower one; the rank that waits least takes no longer than predicted"
        }
        _ => "the link is slower, or ranks wait for a slower one",
    }
}

/// Returns what it means that a stage takes less time than predicted.
fn meaning_of_shorter(stage: Stage) -> &'static str {
    match stage {
        Stage::Lookup | Stage::EmbeddingUpdate => {
            "bags or ids differ from the statistics of the features, or the core is faster"
        }
        Stage::Dense => "products are faster on this core",
        _ => "the link is faster, or more of the exchange is hidden",
    }
}

/// Writes the better plan, if there is one and the user asks for it. Returns its path.
fn write_better(
    args: &PlanCheckArgs,
    found: &PlanCheck,
    config: &JobConfig,
    hosts: &HostLayout,
) -> Result<Option<PathBuf>, Error> {
    let (Some(better), Some(path)) = (&found.better, &args.output) else { return Ok(None) };
    output::put_json(path, &PlanText::new(&plan_of(&better.plan, config, hosts)?))?;
    Ok(Some(path.clone()))
}

fn plan_of(
    plan: &CandidatePlan,
    config: &JobConfig,
    hosts: &HostLayout,
) -> Result<ShardingPlan, Error> {
    Ok(plan.to_sharding_plan(&config.model.tables, hosts).map_err(plan::Error::from)?)
}
