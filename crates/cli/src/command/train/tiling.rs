//! Chooses how a training run splits its tables over ranks, from its options, its launcher and the
//! run that it resumes.

use schema::{ShardingPlan, TableConfig};
use setup::args::Sharding;
use setup::error::{Error, UsageError};
use setup::plan::{self, Tiling};

use crate::args::Train;

/// Chooses the tiling that the options of `train` request, or else the plan of the `resumed` run.
/// `started` is the number of processes that a launcher started.
///
/// # Errors
/// The plan does not fit the tables, or its number of ranks is not the launcher's number of
/// processes.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&ShardingPlan>,
    started: Option<u32>,
) -> Result<Tiling, Error> {
    let has_all_ranks =
        |plan: &&ShardingPlan| started.is_none_or(|ranks| ranks == plan.world_size());
    let resumed = resumed.filter(has_all_ranks).filter(|_| train.ranks.is_none());
    let tiling = match (&train.plan, resumed) {
        (Some(path), _) => plan::read(path, tables).map(Tiling::File)?,
        // A resumed run keeps its plan, unless the user requests another sharding.
        (None, Some(plan)) => match train.sharding {
            Some(sharding) => Tiling::Made(sharding, plan.world_size()),
            None => Tiling::File(plan.clone()),
        },
        (None, None) => {
            let sharding = train.sharding.unwrap_or(Sharding::Table);
            Tiling::Made(sharding, train.ranks.or(started).unwrap_or(1))
        }
    };
    let ranks = match &tiling {
        Tiling::Made(_, ranks) => *ranks,
        Tiling::File(plan) => plan.world_size(),
    };
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

/// Refuses an option that has an effect only with several ranks if there is only one rank.
fn check_ranks(ranks: u32, given: Option<&'static str>) -> Result<(), Error> {
    match given {
        Some(option) if ranks == 1 => Err(UsageError::OneRank { option }.into()),
        _ => Ok(()),
    }
}
