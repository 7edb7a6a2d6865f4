//! `rowmill-bench plans` compares the predicted steps of many sharding plans with their measured
//! steps, on two ranks of one thread each over a simulated link.
//!
//! Costs of this machine are measured first. Then the plans of a model take turns.

mod calibrate;
mod chosen;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use comm::DelayedLink;
use device::Cpu;
use kernel_model::host_costs::HostCosts;
use predict::step::{Conditions, Models, STAGES, Stage};
use schema::{JobConfig, Schedule};
use serde::Serialize;
use train::Model;

use super::ranks::BenchRanks;
use crate::args::BenchPlans;
use bench::sample::{STOPPING, median, place_in_round};
use bench::steps::make_batches;
use chosen::ChosenPlan;
use setup::auto_plan::cpu_topology;
use setup::error::{EXIT_INTERRUPTED, Error, UsageError};
use setup::progress::{Meter, ProgressUnit};
use setup::workload::feature_stats;
use setup::{Session, config, interrupt, render};

/// Models whose plans are compared, besides one of a ready-made configuration.
const MADE: [(&str, &str); 2] = [
    ("many-small", include_str!("plans/many-small.toml")),
    ("few-large", include_str!("plans/few-large.toml")),
];
/// The ready-made configuration whose plans are compared, too.
const READY_MADE: &str = "dlrm-criteo-kaggle";
/// Its changed keys: exchanges over the slow link should matter as much as dense layers.
const CHANGED: [(&str, &str); 4] = [
    ("model.rows_cap", "200000"),
    ("model.bottom", "[64, 16]"),
    ("model.top", "[64, 1]"),
    ("training.batch_size", "2048"),
];
/// Batches that are trained in turn.
const BATCHES: usize = 8;

/// Limits that each model must keep.
const TAU_LEAST: f64 = 0.7;
const BEST_MOST: f64 = 0.03;

/// The result of the measurement.
#[derive(Debug, Serialize)]
struct PlansReport {
    delay_us: f64,
    bandwidth_gb_per_s: f64,
    rounds: u64,
    steps_per_round: u64,
    costs: MeasuredCosts,
    models: Vec<ModelPlans>,
    interrupted: bool,
}

/// Costs of this machine, in nanoseconds.
#[derive(Debug, Serialize)]
struct MeasuredCosts {
    flop_ns: f64,
    byte_ns: f64,
    copy_ns: f64,
    row_ns: f64,
    lookup: [f64; 5],
    update: [f64; 5],
    distribution: [f64; 3],
    link_empty_ns: f64,
    link_megabyte_ns: f64,
}

/// The plans of one model, fastest predicted one first.
#[derive(Debug, Serialize)]
struct ModelPlans {
    model: String,
    batch_size: usize,
    plans: Vec<PlanTimes>,
    kendall_tau: f64,
    /// Measured step of the plan with the shortest predicted one ÷ the shortest measured step − 1.
    best_slower: f64,
    /// Median over plans of the range of the middle three rounds ÷ the median.
    spread: f64,
    is_best_met: bool,
    is_tau_met: bool,
    stages: Vec<StageError>,
}

/// The predicted and the measured step of a plan, in milliseconds.
#[derive(Debug, Serialize)]
struct PlanTimes {
    plan: String,
    predicted_ms: f64,
    measured_ms: f64,
    /// Measured step of each round.
    rounds_ms: Vec<f64>,
    predicted_stages_ms: [f64; STAGES],
    measured_stages_ms: [f64; STAGES],
}

/// The error of a stage's prediction, over all plans.
#[derive(Debug, Serialize)]
struct StageError {
    stage: &'static str,
    predicted_ms: f64,
    measured_ms: f64,
    /// Mean of |predicted − measured| over plans.
    error_ms: f64,
    /// Mean error relative to the mean measured step.
    error_pct_of_step: f64,
}

/// One measured step of a rank: its duration, and its stages by [`Stage::ALL`], in milliseconds.
#[derive(Clone, Copy, Debug)]
struct RankStep {
    step_ms: f64,
    stages_ms: [f64; STAGES],
}

/// Runs `rowmill-bench plans` and prints its result.
pub fn run(args: &BenchPlans, session: &Session) -> Result<ExitCode, Error> {
    let stop = interrupt::stop_flag(STOPPING);
    let link = args.timed.link();
    session.console.say("measuring costs of this machine");
    let costs = calibrate::host_costs(link)?;
    let mut models = Vec::new();
    for (name, job) in jobs(args)? {
        let bench = ModelBench { args, link, costs: &costs, session, stop: &stop };
        models.extend(bench.measure(name, &job)?);
    }
    let interrupted = stop.load(Ordering::SeqCst);
    let report = PlansReport {
        delay_us: 1e6 * args.timed.delay.as_secs_f64(),
        bandwidth_gb_per_s: args.timed.bandwidth / 1e9,
        rounds: args.timed.rounds,
        steps_per_round: args.timed.steps,
        costs: MeasuredCosts {
            flop_ns: costs.flop_ns,
            byte_ns: costs.byte_ns,
            copy_ns: costs.copy_ns,
            row_ns: costs.row_ns,
            lookup: costs.lookup,
            update: costs.update,
            distribution: costs.distribution,
            link_empty_ns: costs.link.alpha_ns(),
            link_megabyte_ns: costs.link.ns(1e6),
        },
        models,
        interrupted,
    };
    session.console.report(&report, table)?;
    Ok(ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { 0 }))
}

/// Lists the models with their configurations.
fn jobs(args: &BenchPlans) -> Result<Vec<(String, JobConfig)>, Error> {
    let batch = args.batch_size.map(|size| ("training.batch_size".to_owned(), size.to_string()));
    let mut jobs = Vec::new();
    for (name, text) in MADE {
        let set: Vec<_> = batch.iter().cloned().collect();
        let config = JobConfig::parse(text, &set).map_err(|source| UsageError::Config {
            origin: name.to_owned(),
            source: Box::new(source),
        })?;
        jobs.push((name.to_owned(), config));
    }
    let set = CHANGED.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let set: Vec<_> = set.into_iter().chain(batch).collect();
    jobs.push((READY_MADE.to_owned(), config::job(READY_MADE, &set)?.config));
    jobs.retain(|(name, _)| args.model.is_empty() || args.model.contains(name));
    Ok(jobs)
}

/// What the measurements of all models share.
struct ModelBench<'a> {
    args: &'a BenchPlans,
    link: Option<DelayedLink>,
    costs: &'a HostCosts,
    session: &'a Session,
    stop: &'a AtomicBool,
}

impl ModelBench<'_> {
    /// Measures the plans of a model. Returns `None` if Ctrl-C ended the measurement.
    fn measure(&self, name: String, job: &JobConfig) -> Result<Option<ModelPlans>, Error> {
        let (args, session) = (self.args, self.session);
        let mut job = job.clone();
        // Tables of 16 columns may be split, too.
        job.plan.least_columns = Some(4);
        let topology = cpu_topology(1, 2, 1.0);
        let kernels = Models::shipped()?;
        let features = feature_stats(&job, 1)?;
        let problem = plan::PlanProblem {
            config: &job,
            features: &features,
            conditions: Conditions {
                host: Some(self.costs),
                ..Conditions::new(&topology, &kernels)
            },
            constraints: &job.plan,
            target: plan::PlanTarget::Rowmill,
        };
        let plans = chosen::choose(&problem, args.plans)?;
        session.console.say(format_args!("building {} plans of {name}", plans.len()));
        let batches = make_batches(&job, 1, &device::Pool::new(2), BATCHES)?;
        let mut ranks = Vec::new();
        for chosen in &plans {
            let plan = chosen.sharding.clone();
            ranks.push(BenchRanks::new(job.clone(), plan, &batches, 1, self.link)?);
        }
        let total = args.timed.rounds * ranks.len() as u64;
        let unit = ProgressUnit::Measurements;
        let mut meter = Meter::start(session.console, "measuring", unit, Some(total));
        let mut rounds: Vec<Vec<RankStep>> = vec![Vec::new(); plans.len()];
        for round in 0..args.timed.rounds as usize {
            for turn in 0..ranks.len() {
                if self.stop.load(Ordering::SeqCst) {
                    return Ok(None);
                }
                let at = place_in_round(round, turn, ranks.len());
                let steps = ranks[at].measure(Schedule::PIPELINED, args.timed.steps, &read_step)?;
                rounds[at].push(median_step(&steps));
                meter.advance((round * ranks.len() + turn + 1) as u64, "");
            }
        }
        meter.finish();
        Ok(Some(summarize(name, job.training.batch_size, plans, &rounds)))
    }
}

/// Reads the stages of the last step of a rank.
fn read_step(step_ms: f64, model: &Model<Cpu>) -> RankStep {
    let mut stages_ms = [0.0; STAGES];
    for (action, time) in model.graph().actions.iter().zip(model.action_times()) {
        let stage = Stage::from_action(action.stage) as usize;
        stages_ms[stage] += 1e3 * time.elapsed.as_secs_f64();
    }
    RankStep { step_ms, stages_ms }
}

/// Returns the median of the steps of a measurement. A step is the mean over ranks, as in
/// `rowmill-bench ablation`, because ranks are early or late by turns. Lookups and row updates take
/// as long as on the slowest rank, and other stages are means over ranks.
fn median_step(by_rank: &[Vec<RankStep>]) -> RankStep {
    let count = by_rank.first().map_or(0, Vec::len);
    let over_steps = |of_ranks: &dyn Fn(usize) -> f64| median((0..count).map(of_ranks).collect());
    let stage_ms = |stage: Stage| {
        over_steps(&|step| {
            let times = by_rank.iter().map(|steps| steps[step].stages_ms[stage as usize]);
            match stage {
                Stage::Lookup | Stage::EmbeddingUpdate => times.fold(0.0, f64::max),
                _ => times.sum::<f64>() / by_rank.len() as f64,
            }
        })
    };
    let step_ms = |step: usize| {
        by_rank.iter().map(|steps| steps[step].step_ms).sum::<f64>() / by_rank.len() as f64
    };
    RankStep { step_ms: over_steps(&step_ms), stages_ms: Stage::ALL.map(stage_ms) }
}

fn summarize(
    model: String,
    batch_size: usize,
    chosen: Vec<ChosenPlan>,
    rounds: &[Vec<RankStep>],
) -> ModelPlans {
    let times = |(chosen, rounds): (ChosenPlan, &Vec<RankStep>)| {
        let over_rounds =
            |value: &dyn Fn(&RankStep) -> f64| median(rounds.iter().map(value).collect());
        PlanTimes {
            plan: chosen.name,
            predicted_ms: chosen.step_ns / 1e6,
            measured_ms: over_rounds(&|step| step.step_ms),
            rounds_ms: rounds.iter().map(|step| step.step_ms).collect(),
            predicted_stages_ms: chosen.stages_ns.map(|ns| ns / 1e6),
            measured_stages_ms: std::array::from_fn(|at| over_rounds(&|step| step.stages_ms[at])),
        }
    };
    let plans: Vec<PlanTimes> = chosen.into_iter().zip(rounds).map(times).collect();
    let fastest = plans.iter().map(|plan| plan.measured_ms).fold(f64::INFINITY, f64::min);
    let best_slower = plans.first().map_or(f64::NAN, |plan| plan.measured_ms / fastest - 1.0);
    let spread = median(plans.iter().map(spread_of).collect());
    let kendall_tau = kendall_tau(&plans);
    let stages = Stage::ALL.map(|stage| stage_error(stage, &plans)).into();
    ModelPlans {
        model,
        batch_size,
        kendall_tau,
        best_slower,
        spread,
        is_best_met: best_slower <= BEST_MOST.max(spread),
        is_tau_met: kendall_tau >= TAU_LEAST,
        stages,
        plans,
    }
}

/// Returns the range of a plan's rounds without the fastest and the slowest, relative to their
/// median.
fn spread_of(plan: &PlanTimes) -> f64 {
    let mut rounds = plan.rounds_ms.clone();
    rounds.sort_by(f64::total_cmp);
    let inner = if rounds.len() > 2 { &rounds[1..rounds.len() - 1] } else { &rounds[..] };
    let range = inner.last().zip(inner.first()).map_or(0.0, |(last, first)| last - first);
    range / plan.measured_ms
}

/// Returns Kendall's rank correlation of predicted and measured steps: the share of pairs in the
/// same order minus the share in the opposite order.
fn kendall_tau(plans: &[PlanTimes]) -> f64 {
    let (mut sum, mut pairs) = (0.0, 0.0);
    for (at, first) in plans.iter().enumerate() {
        for second in &plans[at + 1..] {
            let predicted = second.predicted_ms - first.predicted_ms;
            let measured = second.measured_ms - first.measured_ms;
            let product = predicted * measured;
            sum += if product == 0.0 { 0.0 } else { product.signum() };
            pairs += 1.0;
        }
    }
    if pairs > 0.0 { sum / pairs } else { f64::NAN }
}

fn stage_error(stage: Stage, plans: &[PlanTimes]) -> StageError {
    let mean = |value: &dyn Fn(&PlanTimes) -> f64| {
        plans.iter().map(value).sum::<f64>() / plans.len().max(1) as f64
    };
    let at = stage as usize;
    let predicted = |plan: &PlanTimes| plan.predicted_stages_ms[at];
    let measured = |plan: &PlanTimes| plan.measured_stages_ms[at];
    let error_ms = mean(&|plan| (predicted(plan) - measured(plan)).abs());
    StageError {
        stage: stage.name(),
        predicted_ms: mean(&predicted),
        measured_ms: mean(&measured),
        error_ms,
        error_pct_of_step: 100.0 * error_ms / mean(&|plan| plan.measured_ms),
    }
}

fn table(report: &PlansReport) -> String {
    let number = |value: f64| format!("{value:.2}");
    let verdict = |is_met: bool| if is_met { "met" } else { "MISSED" };
    let mut text = String::new();
    for model in &report.models {
        text += &render::facts(&[
            ("model", format!("{}, B = {}", model.model, model.batch_size)),
            (
                "Kendall's tau",
                format!(
                    "{:.3} (at least {TAU_LEAST}: {})",
                    model.kendall_tau,
                    verdict(model.is_tau_met)
                ),
            ),
            (
                "predicted best",
                format!(
                    "{:.1} % slower than the measured best (at most {:.1} %: {})",
                    100.0 * model.best_slower,
                    100.0 * BEST_MOST.max(model.spread),
                    verdict(model.is_best_met)
                ),
            ),
        ]);
        let plans = model.plans.iter().map(|plan| {
            let stages = plan.predicted_stages_ms.iter().zip(&plan.measured_stages_ms);
            let stages =
                stages.map(|(predicted, measured)| format!("{predicted:.1}/{measured:.1}"));
            let first = [plan.plan.clone(), number(plan.predicted_ms), number(plan.measured_ms)];
            first.into_iter().chain(stages).collect()
        });
        let names = Stage::ALL.map(Stage::name);
        let header: Vec<&str> =
            ["plan, ms", "predicted", "measured"].into_iter().chain(names).collect();
        let plans = render::grid(&header, &plans.collect::<Vec<_>>());
        let stages = model.stages.iter().map(|stage| {
            vec![
                stage.stage.to_owned(),
                number(stage.predicted_ms),
                number(stage.measured_ms),
                number(stage.error_ms),
                format!("{:.1}", stage.error_pct_of_step),
            ]
        });
        let header = ["stage, ms", "predicted", "measured", "error", "% of step"];
        let stages = render::grid(&header, &stages.collect::<Vec<_>>());
        text += &format!("\n\n{plans}\n\n{stages}\n\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{PlanTimes, STAGES, kendall_tau, spread_of};

    fn plan(predicted_ms: f64, measured_ms: f64) -> PlanTimes {
        PlanTimes {
            plan: String::new(),
            predicted_ms,
            measured_ms,
            rounds_ms: vec![measured_ms, 9.0, 1.1 * measured_ms, 0.0, measured_ms],
            predicted_stages_ms: [0.0; STAGES],
            measured_stages_ms: [0.0; STAGES],
        }
    }

    #[test]
    fn tau_counts_pairs_in_the_same_order() {
        let plans = [plan(1.0, 2.0), plan(2.0, 3.0), plan(3.0, 4.0)];
        assert_eq!(kendall_tau(&plans), 1.0);
        let plans = [plan(1.0, 4.0), plan(2.0, 3.0), plan(3.0, 2.0)];
        assert_eq!(kendall_tau(&plans), -1.0);
        let plans = [plan(1.0, 2.0), plan(2.0, 4.0), plan(3.0, 3.0)];
        assert!((kendall_tau(&plans) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_spread_leaves_out_the_fastest_and_slowest_round() {
        assert!((spread_of(&plan(1.0, 2.0)) - 0.1).abs() < 1e-9);
    }
}
