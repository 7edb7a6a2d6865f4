//! Chooses how a training run splits its tables over ranks, from its options, its launcher and the
//! run that it resumes.

use schema::{HostLayout, ShardingPlan, TableConfig};
use setup::args::Sharding;
use setup::error::{Error, UsageError};
use setup::plan::{self, Tiling};

use crate::args::Train;

/// Chooses the tiling that the options of `train` request, or else the plan of the `resumed` run.
/// `started` has the hosts of the processes that a launcher started.
///
/// # Errors
/// The plan does not fit the tables, its number of ranks is not the launcher's number of processes,
/// or the plan or the ranks do not fit the hosts.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&ShardingPlan>,
    started: Option<&HostLayout>,
) -> Result<Tiling, Error> {
    let processes = started.map(|hosts| hosts.world_size() as u32);
    let has_all_ranks =
        |plan: &&ShardingPlan| processes.is_none_or(|ranks| ranks == plan.world_size());
    let resumed = resumed.filter(has_all_ranks).filter(|_| train.ranks.is_none());
    let plan = match &train.plan {
        Some(path) => Some(plan::read(path, tables)?),
        // A resumed run keeps its plan, unless the user requests another sharding.
        None => resumed.filter(|_| train.sharding.is_none()).cloned(),
    };
    let ranks = plan.as_ref().or(resumed).map(ShardingPlan::world_size);
    let ranks = ranks.or(train.ranks).or(processes).unwrap_or(1);
    // Under a launcher the check is skipped, because scripts pass the same options for any number
    // of processes.
    if started.is_none() {
        let option = train.bucket.map(|_| "bucket");
        let option = option.or(train.schedule.map(|_| "schedule"));
        check_ranks(ranks, option.or(train.ranks_per_host.map(|_| "ranks-per-host")))?;
    }
    if let Some(started) = processes.filter(|&started| started != ranks) {
        return Err(UsageError::OtherRanks { asked: ranks, started }.into());
    }
    let hosts = match train.ranks_per_host {
        Some(ranks_per_host) => HostLayout::with_ranks_per_host(ranks as usize, ranks_per_host)
            .map_err(|source| UsageError::Hosts { source })?,
        None => started.cloned().unwrap_or_else(|| HostLayout::on_one_host(ranks as usize)),
    };
    if let Some(plan) = plan {
        return Ok(Tiling::File(plan.on_hosts(hosts)));
    }
    let sharding = train.sharding.unwrap_or(Sharding::Table);
    if started.is_some() && sharding.is_by_host() && hosts.host_count() == 1 {
        // Scripts also pass the same options for any number of hosts. One host splits all rows.
        return Ok(Tiling::new(Sharding::Row, hosts)?);
    }
    Ok(Tiling::new(sharding, hosts)?)
}

/// Refuses an option that has an effect only with several ranks if there is only one rank.
fn check_ranks(ranks: u32, given: Option<&'static str>) -> Result<(), Error> {
    match given {
        Some(option) if ranks == 1 => Err(UsageError::OneRank { option }.into()),
        _ => Ok(()),
    }
}
