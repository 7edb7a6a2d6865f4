//! Compares the predicted stages of a run's plan with those that its ranks measured, and searches
//! for a better plan by prices that the measurement has corrected.

use kernel_model::host_costs::{HostCosts, HostRatios};
use predict::step::{Conditions, STAGES, Stage, StepPrice, StepPricer};
use predict::workload::Workload;
use schema::{Rank, ShardingPlan};

use crate::error::Error;
use crate::placement::CandidatePlan;
use crate::problem::PlanProblem;
use crate::search::{PlanOptions, plan};

/// Lowest and highest ratio of measured to predicted times that corrects a price.
const RATIOS: (f64, f64) = (0.1, 10.0);
/// Least gain that a new plan must have.
const LEAST_GAIN: f64 = 0.02;

/// Mean times of a step as one rank measured them, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRank {
    /// In the order of [`Stage::ALL`].
    pub stages_ns: [f64; STAGES],
    /// Part of the exchanges of pooled vectors and of gradients in which the rank copied messages
    /// and did not wait.
    pub copies_ns: [f64; 2],
    pub step_ns: f64,
}

/// The comparison of a plan with its run.
#[derive(Clone, Debug)]
pub struct PlanCheck {
    /// The predicted step of the run's plan, before corrections.
    pub predicted: StepPrice,
    /// Measured ÷ predicted time of the run's stages, which corrects prices.
    pub ratios: HostRatios,
    /// The measured step of the run, as the mean over ranks, in nanoseconds.
    pub measured_ns: f64,
    /// The measured step minus that of the run's plan by corrected prices, in nanoseconds. Steps of
    /// other plans contain this time as well, so the price of the run's plan is its measured step.
    pub unpriced_ns: f64,
    /// The step of the best plan that the search found, whether it is suggested or not, in
    /// nanoseconds.
    pub best_ns: f64,
    /// The best plan by corrected prices, if it gains more than the noise.
    pub better: Option<BetterPlan>,
}

/// A plan that is better than that of the run by corrected prices.
#[derive(Clone, Debug)]
pub struct BetterPlan {
    pub plan: CandidatePlan,
    /// The predicted step in nanoseconds: by corrected prices, plus [`PlanCheck::unpriced_ns`]. It
    /// is longer if the plan gains less with the predicted prices of exchanges.
    pub step_ns: f64,
}

/// Compares the plan of a run with what its ranks measured. `costs` are those of the conditions of
/// `problem`, and `noise` is the relative noise of a measured step.
///
/// # Errors
/// [`Error::Step`] if the run's plan cannot be priced, and the errors of [`plan`].
pub fn check(
    problem: &PlanProblem<'_>,
    costs: &HostCosts,
    run_plan: &ShardingPlan,
    measured: &[MeasuredRank],
    noise: f64,
) -> Result<PlanCheck, Error> {
    let PlanProblem { config, features, .. } = *problem;
    let price = |plan: &ShardingPlan, conditions: Conditions<'_>| {
        let workload = Workload { config, plan, features };
        Ok::<_, Error>(StepPricer::new(workload, conditions)?.into_price())
    };
    let workload = Workload { config, plan: run_plan, features };
    let conditions = Conditions { host: Some(costs), ..problem.conditions };
    let pricer = StepPricer::new(workload, conditions)?;
    let ranks = (0..measured.len() as u32).map(Rank);
    let copies_ns: Vec<[f64; 2]> =
        ranks.map(|rank| pricer.exchange_copies(rank).map(|time| time.mean_ns)).collect();
    let predicted = pricer.into_price();
    let ratios = compare(&predicted, &copies_ns, measured);
    let corrected = costs.scaled(&ratios);
    let conditions = Conditions { host: Some(&corrected), ..problem.conditions };
    let measured_ns =
        measured.iter().map(|rank| rank.step_ns).sum::<f64>() / measured.len().max(1) as f64;
    let unpriced_ns = measured_ns - price(run_plan, conditions)?.cost.step.mean_ns;
    let found = plan(&PlanProblem { conditions, ..*problem }, &PlanOptions::new(0))?;
    // Measured exchanges contain waits, which a plan with fewer messages may not remove. So a gain
    // must also hold with the predicted prices of exchanges, and the smaller one counts.
    let without_waits = costs.scaled(&HostRatios { exchange: 1.0, ..ratios });
    let least = Conditions { host: Some(&without_waits), ..conditions };
    let new_plan = found.plan.to_sharding_plan(&config.model.tables, run_plan.hosts())?;
    let step = |plan| Ok::<_, Error>(price(plan, least)?.cost.step.mean_ns);
    let least_gain_ns = step(run_plan)? - step(&new_plan)?;
    let step_ns = (found.cost.step.mean_ns + unpriced_ns).max(measured_ns - least_gain_ns);
    let is_better = step_ns < (1.0 - noise.max(LEAST_GAIN)) * measured_ns;
    let better = is_better.then_some(BetterPlan { plan: found.plan, step_ns });
    Ok(PlanCheck { predicted, ratios, measured_ns, unpriced_ns, best_ns: step_ns, better })
}

/// Returns measured ÷ predicted times. A stage without a predicted time has the ratio 1.
///
/// Times are summed over ranks. Of exchanges, only the copies of messages count. The rest is
/// waiting, mostly for slower ranks, which is not a price. On one host a message is a copy, so the
/// ratio of copies also corrects the price of the link.
fn compare(predicted: &StepPrice, copies_ns: &[[f64; 2]], measured: &[MeasuredRank]) -> HostRatios {
    let ranks = || predicted.ranks.iter().zip(measured);
    let ratio = |[predicted_ns, measured_ns]: [f64; 2]| {
        let is_known = predicted_ns > 0.0 && measured_ns > 0.0;
        if is_known { (measured_ns / predicted_ns).clamp(RATIOS.0, RATIOS.1) } else { 1.0 }
    };
    let computed = |stage: Stage| {
        let at = stage as usize;
        ratio(ranks().fold([0.0; 2], |[predicted_ns, measured_ns], (predicted, measured)| {
            [predicted_ns + predicted.stages[at].mean_ns, measured_ns + measured.stages_ns[at]]
        }))
    };
    let sums = copies_ns.iter().zip(measured).fold([0.0; 2], |sums, (predicted, measured)| {
        let own = [predicted, &measured.copies_ns].map(|copies| copies.iter().sum::<f64>());
        [sums[0] + own[0], sums[1] + own[1]]
    });
    HostRatios {
        lookup: computed(Stage::Lookup),
        update: computed(Stage::EmbeddingUpdate),
        dense: computed(Stage::Dense),
        exchange: ratio(sums),
    }
}
