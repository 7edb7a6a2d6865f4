//! The command `rowmill plan`, which searches for the sharding plan with the fastest predicted
//! step. The search is in the crate `plan`, prices are in `predict::step`.

mod convert;
mod drawing;
mod rows;

use std::fs;
use std::io::Write;
use std::path::Path;

use plan::{Constraints, PlanProblem};
use predict::step::{StepPrice, StepPricer};
use schema::ShardingPlan;
use setup::Session;
use setup::args::NeverRunStep;
use setup::error::{Error, UsageError};
use setup::table_output::{self, TableTarget};
use setup::workload::Workload;
use setup::{output, plan as plan_file};

use crate::args::{PlanArgs, PlanRows, PlanSearch, PlanVerb};
use crate::command::predict::hardware_step::{Hardware, StepOptions, conditions};

/// Runs `rowmill plan` and prints its result.
pub fn run(args: &PlanArgs, session: &Session) -> Result<(), Error> {
    match &args.verb {
        Some(PlanVerb::Convert(convert)) => convert::run(convert, session),
        None => search(&args.search, session),
    }
}

/// Searches for a plan, prints it and writes the files that the user asks for.
fn search(args: &PlanSearch, session: &Session) -> Result<(), Error> {
    let (Some(model), Some(name)) = (&args.model, &args.hardware) else {
        return Ok(());
    };
    let hardware = Hardware::from_name(name, args.host.models.as_deref())?;
    let asked = NeverRunStep {
        set: args.set.clone(),
        batch_size: args.batch_size,
        pooling: args.pooling,
        ranks: None,
        sharding: None,
        plan: None,
    };
    let workload = Workload::resolve(model, &asked, hardware.hosts())?;
    let Hardware::Devices(topology, models) = &hardware else {
        return Err(not_a_device(name));
    };
    let launch_ns = 1e3 * args.host.launch_us;
    let options = StepOptions { pooling: args.pooling, launch_ns, kernels: &args.kernels };
    let conditions = conditions(topology, models, &workload, options);
    let config = &workload.job.config;
    let constraints = Constraints::default();
    let problem = PlanProblem { config, features: &workload.features, conditions, constraints: &constraints };
    let found = plan::search(&problem, search_options(args))?;
    let plan = found.plan.to_sharding_plan(&config.model.tables, &problem.hosts()?)?;
    let priced = predict::workload::Workload { plan: &plan, ..workload.borrowed() };
    let price = StepPricer::new(priced, conditions)?.into_price();
    report(args, &found, &price, session);
    let target = TableTarget::default();
    match args.by {
        PlanRows::Rank => table_output::write_rows(session.console, &rows::by_rank(&plan, &price), target),
        PlanRows::Table => table_output::write_rows(session.console, &rows::by_table(config, &found), target),
        PlanRows::Rule => table_output::write_rows(session.console, &rows::by_rule(&found), target),
    }
}
