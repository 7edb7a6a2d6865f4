//! The command `rowmill plan convert`, which converts plans between the forms of rowmill and of
//! TorchRec's planner.

use std::path::Path;

use plan::torchrec::PlannedDevice;
use plan::torchrec::plan_form::{TorchrecPlan, export_plan, import_plan};
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
            output::put_json(&args.output, &to_torchrec(&args.output, &plan, tables)?)?;
        }
        PlanForm::Rowmill => {
            if args.ranks_per_host.is_some() {
                return Err(UsageError::ConvertedHosts.into());
            }
            let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
            setup::plan::check_form(path, &text, "plan", "the form of TorchRec")?;
            let file: TorchrecPlan = serde_json::from_str(&text)
                .map_err(|source| UsageError::PlanFile { path: path.clone(), source })?;
            let hosts = HostLayout::on_one_host(file.ranks() as usize);
            let plan = import_plan(&file, tables, &hosts).map_err(|source| {
                UsageError::TorchrecPlan { path: path.clone(), source: Box::new(source) }
            })?;
            output::put_json(&args.output, &setup::plan::PlanText::new(&plan))?;
        }
    }
    session.console.say(format_args!("plan written to {}", args.output.display()));
    Ok(())
}

/// Converts a plan to the form of TorchRec's planner, for the file at `path`.
pub fn to_torchrec(
    path: &Path,
    plan: &ShardingPlan,
    tables: &[TableConfig],
) -> Result<TorchrecPlan, Error> {
    let refuse =
        |source| UsageError::TorchrecPlan { path: path.to_owned(), source: Box::new(source) };
    Ok(export_plan(plan, tables, MODULE, PlannedDevice::Gpu).map_err(refuse)?)
}
