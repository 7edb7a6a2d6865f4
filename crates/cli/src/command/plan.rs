//! The command `rowmill plan`, which searches for the sharding plan with the fastest predicted
//! step. The search is in the crate `plan`, prices are in `predict::step`.

mod check;
mod convert;
mod drawing;
mod rows;
mod simulate;
mod timeline_drawing;

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use plan::torchrec::{self, Partitioner, TorchrecProblem};
use plan::{Baseline, CandidatePlan, PlanMethod, PlanOptions, PlanProblem, PlanResult};
use predict::step::{Stage, StepPrice, StepPricer};
use schema::{Bytes, JobConfig, ReplicaGroups, ShardingPlan};
use setup::Session;
use setup::args::{NeverRunStep, Sharding};
use setup::error::{Error, UsageError};
use setup::plan::{PlanText, Tiling};
use setup::table_output::{self, TableTarget};
use setup::workload::{Workload, planned_features};
use setup::{output, render};

use crate::args::{CostChoice, PlanArgs, PlanRows, PlanSearch, PlanVerb};
use crate::command::predict::hardware_step::{
    Hardware, StepHost, StepOptions, conditions, report_hardware,
};
use drawing::Panel;
use rows::RuleRow;

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
    let host = StepHost::read(&hardware, args.host.launch_us, None, None, session)?;
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
    };
    check_explained(args, config)?;
    let found = Found::search(&problem, args)?;
    let priced = PricedPlan::new(&problem, &found.chosen)?;
    describe(&found, &priced, session);
    write_files(args, &problem, &priced, session)?;
    let target = TableTarget::default();
    if !args.explain.is_empty() {
        let mut rows = Vec::new();
        for table in &args.explain {
            rows.extend(rows::alternatives(&plan::explain(&problem, &found.chosen, table)?));
        }
        return table_output::write_rows(session.console, &rows, target);
    }
    match args.by {
        PlanRows::Rank => {
            let rows = rows::by_rank(&priced.plan, &priced.price);
            table_output::write_rows(session.console, &rows, target)
        }
        PlanRows::Table => {
            let rows = rows::by_table(&config.model.tables, &found.chosen);
            table_output::write_rows(session.console, &rows, target)
        }
        PlanRows::Rule => {
            let rows = rule_rows(&problem, &found, &priced)?;
            table_output::write_rows(session.console, &rows, target)
        }
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
}

impl Found {
    /// Searches for a plan by the cost that the user chose.
    fn search(problem: &PlanProblem<'_>, args: &PlanSearch) -> Result<Self, Error> {
        let method = match args.cost {
            CostChoice::CriticalPath => PlanMethod::Search,
            CostChoice::Neo => PlanMethod::Baseline(Baseline::Neo),
            CostChoice::Torchrec => {
                return Ok(Self { chosen: plan_as_torchrec(problem)?, result: None });
            }
        };
        // A plan of TorchRec's planner is one more start. It cannot express every constraint.
        let parts = problem.config.model.tables.len() * problem.ranks() as usize;
        let torchrec = (parts <= TORCHREC_PARTS).then(|| plan_as_torchrec(problem).ok());
        let starts = torchrec.flatten().into_iter().collect();
        let budget = args.effort;
        let options = PlanOptions { method, budget, starts, ..PlanOptions::new(args.seed) };
        let result = plan::plan(problem, &options)?;
        Ok(Self { chosen: result.plan.clone(), result: Some(result) })
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
) -> Result<Vec<RuleRow>, Error> {
    let chosen_ns = priced.price.cost.step.mean_ns;
    let row = |rule: &str, cost: predict::step::StepCost, fits: bool| RuleRow {
        rule: rule.to_owned(),
        step_ns: cost.step.mean_ns,
        device_ns: cost.device_ns,
        slower_pct: 100.0 * (cost.step.mean_ns / chosen_ns - 1.0),
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
    let uniform = Sharding::value_variants().iter().filter_map(|sharding| {
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
    if let Some(path) = &args.output {
        output::put_json(path, &PlanText::new(&priced.plan))?;
        say("plan", path);
    }
    if let Some(path) = &args.torchrec {
        convert::write_torchrec(path, &priced.plan, &problem.config.model.tables)?;
        say("plan of TorchRec", path);
    }
    if let Some(path) = &args.svg {
        let text = draw(problem, &priced.price);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
        say("picture", path);
    }
    Ok(())
}

/// Draws time and memory of each rank.
fn draw(problem: &PlanProblem<'_>, price: &StepPrice) -> String {
    let times = price.ranks.iter().map(|rank| {
        let stage_ns = |stage: Stage| rank.stages[stage as usize].mean_ns;
        let exchange_ns = Stage::EXCHANGES.into_iter().map(stage_ns).sum();
        let own = [stage_ns(Stage::EmbeddingForward), stage_ns(Stage::EmbeddingBackward)];
        vec![own[0], own[1], exchange_ns, stage_ns(Stage::Dense), rank.wait_ns]
    });
    let memory = price.ranks.iter().map(|rank| {
        let memory = &rank.memory;
        let tables = [memory.table_weights, memory.table_states, memory.dense_parameters];
        let known: u64 = tables.iter().sum();
        let rest = memory.total().saturating_sub(known);
        tables.into_iter().chain([rest]).map(|bytes| bytes as f64).collect()
    });
    drawing::draw(&[
        Panel {
            title: &format!(
                "Time of a step by rank: {} of {} on {}",
                render::nanos(price.cost.step.mean_ns),
                problem.config.model.name,
                problem.conditions.topology.device.name
            ),
            parts: &["lookups", "row updates", "exchanges", "dense layers", "waiting"],
            bars: times.collect(),
            limit: None,
            format: render::nanos,
        },
        Panel {
            title: "Memory by rank",
            parts: &["table weights", "optimizer states", "dense parameters", "other"],
            bars: memory.collect(),
            limit: Some(("capacity", problem.capacity() as f64)),
            format: |bytes| Bytes(bytes as u64).to_string(),
        },
    ])
}

/// Prints the predicted step, its critical path and its imbalance.
fn describe(found: &Found, priced: &PricedPlan, session: &Session) {
    let price = &priced.price;
    let (mean, most) = price.ranks.iter().fold((0.0, 0.0_f64), |(sum, most), rank| {
        let own = rank.stages[Stage::EmbeddingForward as usize].mean_ns
            + rank.stages[Stage::EmbeddingBackward as usize].mean_ns;
        (sum + own / price.ranks.len() as f64, most.max(own))
    });
    let mut path: Vec<String> = Stage::ALL
        .into_iter()
        .filter(|stage| price.stages[*stage as usize].mean_ns > 0.0)
        .map(|stage| {
            format!("{} {}", stage.name(), render::nanos(price.stages[stage as usize].mean_ns))
        })
        .collect();
    let host_ns = price.cost.step.mean_ns - price.cost.device_ns;
    if host_ns > 0.0 {
        path.push(format!("waiting_for_host {}", render::nanos(host_ns)));
    }
    session.console.say(format_args!(
        "predicted step {} ({} to {}), {:.0} samples/s",
        render::nanos(price.cost.step.mean_ns),
        render::nanos(price.cost.step.low_ns),
        render::nanos(price.cost.step.high_ns),
        price.samples_per_s
    ));
    session.console.say(format_args!("critical path: {}", path.join(" + ")));
    if host_ns > 0.0 {
        let text = "the host limits the step: plans are compared by the time of the devices, then by memory";
        session.console.say(text);
    }
    session.console.say(format_args!(
        "imbalance: the slowest rank takes {:.2} times as long for its tables as the mean",
        if mean > 0.0 { most / mean } else { 1.0 }
    ));
    if let Some(result) = &found.result {
        session.console.detail(format_args!("{} plans were priced", result.priced));
    }
}
