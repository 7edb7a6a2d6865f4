//! Chooses how a training run splits its tables over ranks, from its options, its launcher and the
//! run that it resumes.

use schema::{ReplicaGroups, ShardingPlan, TableConfig};
use setup::args::{RANKS_MAX, Sharding};
use setup::error::{Error, UsageError};
use setup::plan::{self, Tiling};

use crate::args::Train;

/// Chooses the tiling that the options of `train` request, or else the plan of the `resumed` run.
/// `started` is the number of processes that a launcher started.
///
/// # Errors
/// The plan does not fit the tables, its number of ranks is not the launcher's number of processes,
/// or replica groups do not divide the ranks.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&ShardingPlan>,
    started: Option<u32>,
) -> Result<Tiling, Error> {
    let has_all_ranks =
        |plan: &&ShardingPlan| started.is_none_or(|ranks| ranks == plan.world_size());
    let resumed = resumed.filter(has_all_ranks).filter(|_| train.ranks.is_none());
    let groups = choose_groups(train, resumed)?;
    let made = |ranks| {
        let group_size = groups.divide(ranks);
        let group_size = group_size.map_err(|source| UsageError::ReplicaGroups { source })?;
        let sharding = train.sharding.unwrap_or(Sharding::Table);
        Ok::<_, Error>(Tiling::Grouped(sharding, group_size, groups))
    };
    let tiling = match (&train.plan, resumed) {
        (Some(path), _) => Tiling::File(plan::read(path, tables)?.in_groups(groups)),
        // A resumed run keeps its plan, unless the user requests another sharding or other groups.
        (None, Some(plan)) if train.sharding.is_none() && groups.count == plan.groups().count => {
            Tiling::File(plan.clone().in_groups(groups))
        }
        (None, Some(plan)) => made(plan.world_size())?,
        (None, None) => made(train.ranks.or(started).unwrap_or(1))?,
    };
    let ranks = tiling.world_size();
    if ranks > RANKS_MAX {
        return Err(UsageError::TooManyRanks { got: ranks }.into());
    }
    // Under a launcher the check is skipped, because scripts pass the same options for any number
    // of processes.
    if started.is_none() {
        let bucket = train.bucket.map(|_| "bucket");
        check_ranks(ranks, bucket.or(train.schedule.map(|_| "schedule")))?;
    }
    match started.filter(|&started| started != ranks) {
        None => Ok(tiling),
        Some(started) => Err(UsageError::OtherRanks { asked: ranks, started }.into()),
    }
}

/// Chooses the replica groups that the options of `train` request, or else those of the `resumed`
/// run.
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
