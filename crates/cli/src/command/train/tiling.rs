//! How a training run splits its tables over ranks, by its options, its launcher and the run that
//! it resumes.

use schema::{ShardingPlan, TableConfig};
use setup::args::Sharding;
use setup::error::{Error, UsageError};
use setup::plan::{self, Tiling};

use crate::args::Train;

/// What `train` asks for, where a launcher has `started` so many processes; the plan of the run
/// that it resumes, where it asks for none.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&ShardingPlan>,
    started: Option<u32>,
) -> Result<Tiling, Error> {
    let fits = |plan: &&ShardingPlan| started.is_none_or(|ranks| ranks == plan.world_size());
    let resumed = resumed.filter(fits).filter(|_| train.ranks.is_none());
    let tiling = match (&train.plan, resumed) {
        (Some(path), _) => plan::read(path, tables).map(Tiling::File)?,
        // A run that is resumed goes on under its plan, unless another way to split is asked for.
        (None, Some(plan)) => match train.sharding {
            Some(sharding) => Tiling::Made(sharding, plan.world_size()),
            None => Tiling::File(plan.clone()),
        },
        (None, None) => {
            let sharding = train.sharding.unwrap_or(Sharding::Table);
            Tiling::Made(sharding, train.ranks.or(started).unwrap_or(1))
        }
    };
    let asked = match &tiling {
        Tiling::Made(_, ranks) => *ranks,
        Tiling::File(plan) => plan.world_size(),
    };
    // A launcher's script is written for any number of processes.
    if started.is_none() {
        check_ranks(asked, train.bucket.map(|_| "bucket"))?;
    }
    match started.filter(|&started| started != asked) {
        None => Ok(tiling),
        Some(started) => Err(UsageError::OtherRanks { asked, started }.into()),
    }
}

/// Refuses the option that was given, if any, that says what several ranks do, where there is one.
fn check_ranks(ranks: u32, given: Option<&'static str>) -> Result<(), Error> {
    match given {
        Some(option) if ranks == 1 => Err(UsageError::OneRank { option }.into()),
        _ => Ok(()),
    }
}
