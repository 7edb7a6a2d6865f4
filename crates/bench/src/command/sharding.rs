//! `rowmill-bench sharding` compares the step under `--sharding auto` with those under the
//! ready-made rules, on ranks that take turns.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use device::Isa;
use schema::{HostLayout, JobConfig, ReplicaGroups, Schedule, ShardingPlan};
use serde::Serialize;

use super::ablation::mean_interval;
use super::ranks::BenchRanks;
use crate::args::BenchSharding;
use bench::batches;
use bench::sample::{STOPPING, median, place_in_round};
use bench::steps::make_batches;
use setup::args::Sharding;
use setup::device::ComputeDevice;
use setup::error::{EXIT_INTERRUPTED, Error};
use setup::plan::Tiling;
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, auto_plan, config, interrupt, render, rows};

/// The rules with which a searched plan is compared.
const RULES: [Sharding; 4] = [Sharding::Table, Sharding::Row, Sharding::Column, Sharding::Mixed];
/// Batches that are trained in turn.
const BATCHES: usize = 16;
const AUTO: &str = "auto";
/// End of the interval that the speed relative to the best rule must reach.
const REACHED: f64 = 0.98;

/// The result of the measurement.
#[derive(Debug, Serialize)]
struct ShardingReport {
    config: String,
    batch_size: usize,
    ranks: u32,
    threads_per_rank: usize,
    delay_us: f64,
    rounds: usize,
    steps_per_round: u64,
    rules: Vec<RuleTimes>,
    best_rule: String,
    /// Step of the best rule ÷ step of the searched plan, as a mean over rounds with its interval.
    best_over_auto: f64,
    best_over_auto_low: f64,
    best_over_auto_high: f64,
    is_met: bool,
    interrupted: bool,
}

/// The measured step under a rule, in milliseconds.
#[derive(Debug, Serialize)]
struct RuleTimes {
    rule: String,
    step_ms: f64,
    rounds_ms: Vec<f64>,
}

/// Runs `rowmill-bench sharding` and prints its result.
pub fn run(args: &BenchSharding, session: &Session) -> Result<ExitCode, Error> {
    let BenchSharding { training, timed } = args;
    let job = config::job(&training.config, &training.set)?;
    rows::check_known(&job.config.model.tables, "rowmill-bench sharding")?;
    let stop = interrupt::stop_flag(STOPPING);
    let threads = training.threads_per_rank(session.threads);
    let plans = list_plans(&job.config, training.ranks, session)?;
    session.console.say(format_args!("building {} under {} plans", job.origin, plans.len()));
    let batch_size = job.config.training.batch_size;
    let count = batches::distinct_batches(batch_size).min(BATCHES);
    let batches = make_batches(&job.config, training.pooling, &device::Pool::new(threads), count)?;
    let mut ranks = Vec::new();
    for RulePlan { plan, .. } in &plans {
        ranks.push(BenchRanks::new(
            job.config.clone(),
            plan.clone(),
            &batches,
            threads,
            timed.link(),
        )?);
    }
    let total = Some(timed.rounds * plans.len() as u64);
    let mut meter = Meter::start(session.console, "measuring", ProgressUnit::Measurements, total);
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); plans.len()];
    'rounds: for round in 0..timed.rounds as usize {
        for turn in 0..plans.len() {
            if stop.load(Ordering::SeqCst) {
                rounds.iter_mut().for_each(|steps| steps.truncate(round));
                break 'rounds;
            }
            let at = place_in_round(round, turn, plans.len());
            rounds[at].push(measure(&mut ranks[at], timed.steps)?);
            meter.advance((round * plans.len() + turn + 1) as u64, "");
        }
    }
    meter.finish();
    let interrupted = stop.load(Ordering::SeqCst);
    let measured = rounds.first().map_or(0, Vec::len);
    if measured < 2 {
        session.console.say("interrupted before the second round");
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let rules = plans.into_iter().zip(rounds).map(|(RulePlan { rule, .. }, rounds_ms)| RuleTimes {
        rule,
        step_ms: median(rounds_ms.clone()),
        rounds_ms,
    });
    let rules: Vec<RuleTimes> = rules.collect();
    let (best_rule, [low, mean, high]) = compare_with_best(&rules);
    let report = ShardingReport {
        config: job.origin,
        batch_size,
        ranks: training.ranks,
        threads_per_rank: threads,
        delay_us: 1e6 * timed.delay.as_secs_f64(),
        rounds: measured,
        steps_per_round: timed.steps,
        rules,
        best_rule,
        best_over_auto: mean,
        best_over_auto_low: low,
        best_over_auto_high: high,
        is_met: high >= REACHED,
        interrupted,
    };
    session.console.report(&report, table)?;
    Ok(ExitCode::from(if interrupted { EXIT_INTERRUPTED } else { 0 }))
}

/// A plan with the name of the rule that made it.
struct RulePlan {
    rule: String,
    plan: ShardingPlan,
}

/// Makes the plan of the search first, and then those of the rules.
fn list_plans(config: &JobConfig, ranks: u32, session: &Session) -> Result<Vec<RulePlan>, Error> {
    let hosts = HostLayout::on_one_host(ranks as usize);
    let device = ComputeDevice::Cpu(Isa::detect());
    let auto = auto_plan::plan_for_run(config, &hosts, 1, &device, session)?;
    let mut plans = vec![RulePlan { rule: AUTO.to_owned(), plan: auto }];
    for sharding in RULES {
        let tiling = Tiling::new(sharding, hosts.clone(), ReplicaGroups::SINGLE)?;
        let plan = tiling.plan(&config.model.tables);
        plans.push(RulePlan { rule: sharding.name(), plan });
    }
    Ok(plans)
}

/// Returns the median step of a few steps in milliseconds, as the mean over ranks.
fn measure(ranks: &mut BenchRanks, steps: u64) -> Result<f64, Error> {
    let by_rank = ranks.measure(Schedule::PIPELINED, steps, &|step_ms, _| step_ms)?;
    let mean = |step: usize| {
        by_rank.iter().map(|steps| steps[step]).sum::<f64>() / by_rank.len().max(1) as f64
    };
    Ok(median((0..steps as usize).map(mean).collect()))
}

/// Returns the rule with the shortest step, and the mean of its step ÷ that of the searched plan
/// in the same round, with its interval.
fn compare_with_best(rules: &[RuleTimes]) -> (String, [f64; 3]) {
    let Some((auto, others)) = rules.split_first() else { return Default::default() };
    let best = others.iter().min_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    let Some(best) = best else { return Default::default() };
    let rounds = best.rounds_ms.iter().zip(&auto.rounds_ms);
    let ratios: Vec<f64> = rounds.map(|(best, auto)| best / auto).collect();
    (best.rule.clone(), mean_interval(&ratios))
}

fn table(report: &ShardingReport) -> String {
    let facts = render::facts(&[
        (
            "training",
            format!(
                "{}, B = {}, {} of {}",
                report.config,
                report.batch_size,
                render::counted(u64::from(report.ranks), "rank"),
                render::counted(report.threads_per_rank as u64, "thread"),
            ),
        ),
        (
            "best rule ÷ auto",
            format!(
                "{}: {:.3} ({:.3} to {:.3}), {}",
                report.best_rule,
                report.best_over_auto,
                report.best_over_auto_low,
                report.best_over_auto_high,
                if report.is_met { "met" } else { "MISSED" },
            ),
        ),
    ]);
    let rows =
        report.rules.iter().map(|rule| vec![rule.rule.clone(), format!("{:.3}", rule.step_ms)]);
    format!("{facts}\n\n{}", render::grid(&["sharding", "ms per step"], &rows.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::{RuleTimes, compare_with_best};

    #[test]
    fn the_searched_plan_is_compared_with_the_best_rule_round_by_round() {
        let rule = |rule: &str, rounds: [f64; 2]| RuleTimes {
            rule: rule.to_owned(),
            step_ms: rounds[0],
            rounds_ms: rounds.to_vec(),
        };
        let rules = [rule("auto", [2.0, 4.0]), rule("row", [5.0, 5.0]), rule("column", [1.0, 2.0])];
        assert_eq!(compare_with_best(&rules), ("column".to_owned(), [0.5; 3]));
    }
}
