//! Chooses how a training run splits its tables over ranks, from its options, its launcher and the
//! run that it resumes.

use schema::{HostLayout, ReplicaGroups, ShardingPlan, TableConfig};
use setup::args::{RANKS_MAX, Sharding};
use setup::error::{Error, UsageError};
use setup::plan::{self, Tiling};

use crate::args::Train;

/// Chooses the tiling that the options of `train` request, or else the plan of the `resumed` run.
/// `started` has the hosts of the processes that a launcher started.
///
/// # Errors
/// The plan does not fit the tables, its number of ranks is not the launcher's number of processes,
/// replica groups do not divide the ranks, or the plan or the ranks do not fit the hosts.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&ShardingPlan>,
    started: Option<&HostLayout>,
) -> Result<Tiling, Error> {
    let groups = choose_groups(train, resumed)?;
    let processes = started.map(|hosts| hosts.world_size() as u32);
    let has_all_ranks =
        |plan: &&ShardingPlan| processes.is_none_or(|ranks| ranks == plan.world_size());
    let resumed = resumed.filter(has_all_ranks).filter(|_| train.ranks.is_none());
    let plan = match (&train.plan, resumed) {
        (Some(path), _) => Some(plan::read(path, tables)?),
        // A resumed run keeps its plan, unless the user requests another sharding or other groups.
        (None, Some(plan)) if train.sharding.is_none() && groups.count == plan.groups().count => {
            Some(plan.clone())
        }
        _ => None,
    };
    let plan = plan.map(|plan| plan.in_groups(groups));
    let ranks = plan.as_ref().or(resumed).map(ShardingPlan::world_size);
    let ranks = ranks.or(train.ranks).or(processes).unwrap_or(1);
    if ranks > RANKS_MAX {
        return Err(UsageError::TooManyRanks { got: ranks }.into());
    }
    let group_size = groups.divide(ranks).map_err(|source| UsageError::ReplicaGroups { source })?;
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
    let hosts = hosts.group_layout(group_size as usize);
    if let Some(plan) = plan {
        return Ok(Tiling::File(plan.on_hosts(hosts)));
    }
    let sharding = train.sharding.unwrap_or(Sharding::Table);
    if started.is_some() && sharding.is_by_host() && hosts.host_count() == 1 {
        // Scripts also pass the same options for any number of hosts. One host splits all rows.
        return Ok(Tiling::new(Sharding::Row, hosts, groups)?);
    }
    Ok(Tiling::new(sharding, hosts, groups)?)
}

/// Chooses the replica groups that the options of `train` request, or else those of the `resumed`
/// run, also with another number of ranks. Other groups would be another algorithm.
fn choose_groups(train: &Train, resumed: Option<&ShardingPlan>) -> Result<ReplicaGroups, Error> {
    let saved = resumed.map_or(ReplicaGroups::SINGLE, ShardingPlan::groups);
    let groups = ReplicaGroups {
        count: train.groups.unwrap_or(saved.count),
        sync_every: train.sync_every.unwrap_or(saved.sync_every),
    };
    match train.sync_every {
        Some(_) if groups.is_single() => Err(UsageError::OneGroup.into()),
        _ if groups.is_single() => Ok(ReplicaGroups::SINGLE),
        _ => Ok(groups),
    }
}

/// Refuses an option that has an effect only with several ranks if there is only one rank.
fn check_ranks(ranks: u32, given: Option<&'static str>) -> Result<(), Error> {
    match given {
        Some(option) if ranks == 1 => Err(UsageError::OneRank { option }.into()),
        _ => Ok(()),
    }
}
