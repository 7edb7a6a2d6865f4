//! The command `rowmill plan`, which searches for the sharding plan with the fastest predicted
//! step. The search is in the crate `plan`, prices are in `predict::step`.

pub mod axis;
mod check;
mod convert;
mod drawing;
mod rows;
mod simulate;
mod summary;
mod timeline_drawing;

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use clap::ValueEnum;
use plan::torchrec::{self, Partitioner, TorchrecProblem};
use plan::{Baseline, CandidatePlan, PlanMethod, PlanOptions, PlanProblem, PlanResult, PlanTarget};
use predict::step::{StepPrice, StepPricer};
use schema::{JobConfig, ReplicaGroups, ShardingPlan};
use setup::Session;
use setup::args::{NeverRunStep, Sharding};
use setup::error::{Error, UsageError};
use setup::plan::{PlanText, Tiling};
use setup::workload::{Workload, planned_features};
use setup::{interrupt, output, plan_search};

use crate::args::{CostChoice, PlanArgs, PlanRows, PlanSearch, PlanVerb};
use crate::command::predict::hardware_step::{
    Hardware, StepHost, StepOptions, conditions, report_hardware,
};
use rows::RuleRow;
use summary::{PlanOutput, PlanSummary};

/// Largest product of tables and ranks with which TorchRec's planner, which places thousands of
/// proposals, makes a start. With more, it takes longer than the whole search.
const TORCHREC_PARTS: usize = 50_000;

/// Runs `rowmill plan` and prints its result.
pub fn run(args: &PlanArgs, session: &Session) -> Result<(), Error> {
    match &args.verb {
        Some(PlanVerb::Check(check)) => check::run(check, session),
        Some(PlanVerb::Convert(convert)) => convert::run(convert, session),
        Some(PlanVerb::Simulate(simulated)) => simulate::run(simulated, session),
        None => search(&args.search, session),
    }
}

/// Searches for a plan, prints it and writes the files that the user asks for.
fn search(args: &PlanSearch, session: &Session) -> Result<(), Error> {
    // Clap requires both options if there is no verb.
    let (Some(model), Some(name)) = (&args.model, &args.hardware) else { return Ok(()) };
    let hardware = Hardware::from_name(name, args.host.models.as_deref())?;
    let Hardware::Devices(topology, models) = &hardware else {
        return Err(UsageError::PlannedCpu { name: name.clone() }.into());
    };
    let asked = NeverRunStep {
        set: args.set.clone(),
        batch_size: args.batch_size,
        pooling: args.pooling.unwrap_or(1),
        ranks: None,
        sharding: None,
        plan: None,
    };
    let mut workload = Workload::resolve(model, &asked, hardware.hosts())?;
    let stats = &mut workload.job.config.plan.stats;
    *stats = args.stats.clone().or(stats.take());
    workload.features = planned_features(&workload.job.config, args.pooling)?;
    report_hardware(topology, topology.ranks() as usize, session);
    let host = StepHost::read(&hardware, &args.host, None, None, session)?;
    StepHost::report(&host, session);
    let mut options =
        StepOptions { pooling: asked.pooling, launch_ns: 0.0, kernels: &args.kernels };
    if let Some(host) = host {
        let launches =
            StepPricer::new(workload.borrowed(), conditions(topology, models, &workload, options))?
                .launches();
        options.launch_ns = host.launch_ns(&workload, f64::from(launches.max(1)), session);
    }
    let config = &workload.job.config;
    let problem = PlanProblem {
        config,
        features: &workload.features,
        conditions: conditions(topology, models, &workload, options),
        constraints: &config.plan,
        target: if args.torchrec.is_some() { PlanTarget::Torchrec } else { PlanTarget::Rowmill },
    };
    if problem.target == PlanTarget::Torchrec {
        session.console.say("--torchrec: the search uses only layouts that TorchRec has");
    }
    check_explained(args, config)?;
    let found = Found::search(&problem, args, session)?;
    let priced = PricedPlan::new(&problem, &found.chosen)?;
    let mut summary = PlanSummary::new(args, &problem, found.result.as_ref(), &priced.price);
    summary.is_ended_early = found.is_ended_early;
    summary.describe(session);
    write_files(args, &problem, &priced, session)?;
    let output = PlanOutput { summary, session };
    if !args.explain.is_empty() {
        let mut rows = Vec::new();
        for (at, table) in args.explain.iter().enumerate() {
            if !args.explain[..at].contains(table) {
                rows.extend(rows::alternatives(&plan::explain(&problem, &found.chosen, table)?));
            }
        }
        return output.write(&rows);
    }
    match args.by {
        PlanRows::Rank => {
            let mut rows = rows::by_rank(&priced.plan, &priced.price);
            rows::show_extremes(&mut rows, session.console);
            output.write(&rows)
        }
        PlanRows::Table => output.write(&rows::by_table(&config.model.tables, &found.chosen)),
        PlanRows::Rule => output.write(&rule_rows(&problem, &found, &priced, session)?),
    }
}

/// Refuses to explain tables that the model lacks, before the search begins.
fn check_explained(args: &PlanSearch, config: &JobConfig) -> Result<(), Error> {
    let names = || config.model.tables.iter().map(|table| table.name.clone());
    match args.explain.iter().find(|wanted| !names().any(|name| name == **wanted)) {
        None => Ok(()),
        Some(table) => {
            let tables = names().take(12).collect();
            Err(UsageError::ExplainedTable { table: table.clone(), tables }.into())
        }
    }
}

/// The plan of a search, and the plans to which it is compared.
struct Found {
    chosen: CandidatePlan,
    /// The result of our own search; TorchRec's planner has none.
    result: Option<PlanResult>,
    /// Whether Ctrl-C ended the search.
    is_ended_early: bool,
}

impl Found {
    /// Searches for a plan by the cost that the user chose.
    fn search(
        problem: &PlanProblem<'_>,
        args: &PlanSearch,
        session: &Session,
    ) -> Result<Self, Error> {
        let method = match args.cost {
            CostChoice::CriticalPath => PlanMethod::Search,
            CostChoice::Neo => PlanMethod::Baseline(Baseline::Neo),
            CostChoice::Torchrec => {
                let chosen = plan_as_torchrec(problem)?;
                return Ok(Self { chosen, result: None, is_ended_early: false });
            }
        };
        // A plan of TorchRec's planner is one more start. It cannot express every constraint.
        let parts = problem.config.model.tables.len() * problem.ranks() as usize;
        let torchrec = (parts <= TORCHREC_PARTS).then(|| plan_as_torchrec(problem).ok());
        let starts = torchrec.flatten().into_iter().collect();
        let budget = args.effort;
        let options = PlanOptions { method, budget, starts, ..PlanOptions::new(args.seed) };
        let stop = interrupt::stop_flag("ending the search with the best plan so far");
        let result = plan_search::search(problem, &options, &stop, session)?;
        let is_ended_early = stop.load(Ordering::SeqCst);
        if is_ended_early {
            let priced = result.priced;
            session.console.say(format_args!("the search was ended after {priced} plans"));
        }
        Ok(Self { chosen: result.plan.clone(), result: Some(result), is_ended_early })
    }
}

/// Plans as TorchRec's planner does.
fn plan_as_torchrec(problem: &PlanProblem<'_>) -> Result<CandidatePlan, Error> {
    let torchrec = TorchrecProblem::from_problem(problem)?;
    Ok(torchrec::search::search(&torchrec, Partitioner::GreedyPerf)?.to_candidate())
}

/// A plan in the form of the trainer, with its predicted step.
struct PricedPlan {
    plan: ShardingPlan,
    price: StepPrice,
}

impl PricedPlan {
    fn new(problem: &PlanProblem<'_>, chosen: &CandidatePlan) -> Result<Self, Error> {
        let plan = chosen.to_sharding_plan(&problem.config.model.tables, &problem.hosts()?);
        Self::from_plan(problem, plan.map_err(plan::Error::from)?)
    }

    fn from_plan(problem: &PlanProblem<'_>, plan: ShardingPlan) -> Result<Self, Error> {
        let PlanProblem { config, features, conditions, .. } = *problem;
        let workload = predict::workload::Workload { config, plan: &plan, features };
        let price = StepPricer::new(workload, conditions)?.into_price();
        Ok(Self { plan, price })
    }
}

/// Lists the predicted steps of the chosen plan, of the plans of all search rules and of TorchRec's
/// planner, and of those of `rowmill train --sharding`.
fn rule_rows(
    problem: &PlanProblem<'_>,
    found: &Found,
    priced: &PricedPlan,
    session: &Session,
) -> Result<Vec<RuleRow>, Error> {
    let chosen_ns = priced.price.cost.step.mean_ns;
    let chosen_device_ns = priced.price.cost.device_ns.max(1.0);
    let row = |rule: &str, cost: predict::step::StepCost, fits: bool| RuleRow {
        rule: rule.to_owned(),
        step_ns: cost.step.mean_ns,
        device_ns: cost.device_ns,
        slower_pct: 100.0 * (cost.step.mean_ns / chosen_ns - 1.0),
        device_slower_pct: 100.0 * (cost.device_ns / chosen_device_ns - 1.0),
        peak_bytes: cost.peak_bytes,
        fits,
    };
    let mut rows = vec![row("chosen", priced.price.cost, true)];
    for baseline in found.result.iter().flat_map(|result| &result.baselines) {
        rows.push(row(baseline.baseline.name(), baseline.cost, baseline.fits));
    }
    // TorchRec's planner cannot express every constraint, and then has no row.
    let hosts = problem.hosts()?;
    let tables = &problem.config.model.tables;
    let torchrec = plan_as_torchrec(problem).ok().map(|plan| {
        let plan = plan.to_sharding_plan(tables, &hosts).map_err(plan::Error::from)?;
        Ok::<_, Error>(("torchrec".to_owned(), plan))
    });
    let is_free = !plan::limits_plans(problem.constraints);
    if !is_free {
        let text = "plans of --sharding are left out, because they do not follow [plan]";
        session.console.say(text);
    }
    let rules = Sharding::value_variants().iter().filter(|_| is_free);
    let uniform = rules.filter_map(|sharding| {
        let tiling = Tiling::new(*sharding, hosts.clone(), ReplicaGroups::SINGLE).ok()?;
        Some(Ok((format!("--sharding {}", sharding.name()), tiling.plan(tables))))
    });
    for rule in torchrec.into_iter().chain(uniform) {
        let (rule, plan) = rule?;
        let cost = PricedPlan::from_plan(problem, plan)?.price.cost;
        rows.push(row(&rule, cost, cost.peak_bytes <= problem.capacity()));
    }
    Ok(rows)
}

/// Writes the plan in the forms that the user asks for, and draws it.
fn write_files(
    args: &PlanSearch,
    problem: &PlanProblem<'_>,
    priced: &PricedPlan,
    session: &Session,
) -> Result<(), Error> {
    let say = |what: &str, path: &Path| {
        session.console.say(format_args!("{what} written to {}", path.display()));
    };
    // A plan that TorchRec cannot express is refused before any file is written.
    let tables = &problem.config.model.tables;
    let torchrec = args.torchrec.as_ref();
    let torchrec = torchrec
        .map(|path| match convert::to_torchrec(&priced.plan, tables) {
            Ok(plan) => Ok((path, plan)),
            Err(source) => {
                Err(UsageError::TorchrecPlan { path: path.clone(), source: Box::new(source) })
            }
        })
        .transpose()?;
    if let Some(path) = &args.output {
        output::put_json(path, &PlanText::new(&priced.plan))?;
        say("plan", path);
    }
    if let Some((path, plan)) = torchrec {
        output::put_json(path, &plan)?;
        say("plan of TorchRec", path);
    }
    if let Some(path) = &args.svg {
        let text = drawing::draw_plan(problem, &priced.price);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
        say("picture", path);
    }
    Ok(())
}
