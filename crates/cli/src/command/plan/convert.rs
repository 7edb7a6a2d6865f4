//! The command `rowmill plan convert`, which converts plans between the forms of rowmill and of
//! TorchRec's planner.

use plan::torchrec::plan_form::{TorchrecPlan, export_plan, import_plan};
use plan::torchrec::{PlannedDevice, TorchrecError};
use schema::{HostLayout, ShardingPlan, TableConfig};
use setup::error::{Error, UsageError};
use setup::{Session, config, output};

use crate::args::{PlanConvert, PlanForm};

/// The path of the module that holds the tables in TorchRec's DLRM.
const MODULE: &str = "model.sparse_arch.embedding_bag_collection";

/// Runs `rowmill plan convert`.
pub fn run(args: &PlanConvert, session: &Session) -> Result<(), Error> {
    let job = config::job(&args.model, &args.set)?;
    let tables = &job.config.model.tables;
    let path = &args.plan;
    match args.to {
        PlanForm::Torchrec => {
            let mut plan = setup::plan::read(path, tables)?;
            if args.ranks.is_some() {
                return Err(UsageError::RanksToTorchrec.into());
            }
            let ranks = plan.world_size();
            if let Some(ranks_per_host) = args.ranks_per_host {
                let hosts = HostLayout::with_ranks_per_host(ranks as usize, ranks_per_host)
                    .map_err(|source| UsageError::Hosts { source })?;
                plan = plan.on_hosts(hosts);
            } else if ranks > 1 {
                session.console.say(format_args!(
                    "all {ranks} ranks are taken to be on one host; --ranks-per-host gives another \
                     number"
                ));
            }
            let file = to_torchrec(&plan, tables).map_err(|source| {
                let (path, source) = (path.clone(), Box::new(source));
                match args.ranks_per_host {
                    None if ranks > 1 => UsageError::TorchrecPlanOfOneHost { path, source },
                    _ => UsageError::TorchrecPlan { path, source },
                }
            })?;
            if file.ranks() < ranks {
                session.console.say(format_args!(
                    "TorchRec's form does not contain the number of ranks, and the last ones hold \
                     no table: give --ranks {ranks} to convert the new file back"
                ));
            }
            output::put_json(&args.output, &file)?;
        }
        PlanForm::Rowmill => {
            if args.ranks_per_host.is_some() {
                return Err(UsageError::ConvertedHosts.into());
            }
            let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
            setup::plan::check_form(path, &text, "plan", "the form of TorchRec")?;
            let file: TorchrecPlan = serde_json::from_str(&text)
                .map_err(|source| UsageError::PlanFile { path: path.clone(), source })?;
            let ranks = args.ranks.unwrap_or_else(|| {
                let ranks = file.ranks();
                session.console.say(format_args!(
                    "TorchRec's form does not contain the number of ranks: the plan gets {ranks}, \
                     up to the last one that holds a table; --ranks gives another number"
                ));
                ranks
            });
            let hosts = HostLayout::on_one_host(ranks as usize);
            let plan = import_plan(&file, tables, &hosts).map_err(|source| {
                UsageError::TorchrecPlan { path: path.clone(), source: Box::new(source) }
            })?;
            output::put_json(&args.output, &setup::plan::PlanText::new(&plan))?;
        }
    }
    session.console.say(format_args!("plan written to {}", args.output.display()));
    Ok(())
}

/// Converts a plan to the form of TorchRec's planner.
pub fn to_torchrec(
    plan: &ShardingPlan,
    tables: &[TableConfig],
) -> Result<TorchrecPlan, TorchrecError> {
    export_plan(plan, tables, MODULE, PlannedDevice::Gpu)
}
