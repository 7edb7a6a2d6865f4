//! Chooses how a training run splits its tables over ranks, from its options, its launcher and the
//! run that it resumes.

use schema::{HostLayout, JobConfig, ReplicaGroups, ShardingPlan, TableConfig};
use setup::args::{RANKS_MAX, Sharding, ShardingChoice};
use setup::device::ComputeDevice;
use setup::error::{Error, UsageError};
use setup::plan::{self, FixedPlan, Tiling};
use setup::render::Console;
use setup::{Session, auto_plan};

use crate::args::Train;

/// Chooses the tiling that the options of `train` request, or else the plan of the `resumed` run.
/// With `--sharding auto`, tables are whole until [`search_tiling`] knows their rows.
/// `started` has the hosts of the processes that a launcher started.
///
/// # Errors
/// The plan does not fit the tables, its number of ranks is not the launcher's number of processes,
/// replica groups do not divide the ranks or have nothing to average, the plan or the ranks do not
/// fit the hosts, or the rule of a resumed run that needs another plan is unknown.
pub fn choose_tiling(
    train: &Train,
    tables: &[TableConfig],
    resumed: Option<&FixedPlan>,
    started: Option<&HostLayout>,
    console: Console,
) -> Result<Tiling, Error> {
    let groups = choose_groups(train, resumed.map(|resumed| &resumed.plan))?;
    let processes = started.map(|hosts| hosts.world_size() as u32);
    let has_all_ranks = |resumed: &&FixedPlan| {
        let asked = [processes, train.ranks];
        asked.into_iter().flatten().all(|ranks| ranks == resumed.plan.world_size())
    };
    let kept = resumed.filter(has_all_ranks);
    let fixed = match (&train.plan, kept) {
        (Some(path), _) => Some(FixedPlan { plan: plan::read(path, tables)?, sharding: None }),
        // A resumed run keeps its plan, unless the user requests another sharding or other groups.
        (None, Some(FixedPlan { plan, .. }))
            if matches!(train.sharding, None | Some(ShardingChoice::Auto))
                && groups.count == plan.groups().count =>
        {
            kept.cloned()
        }
        _ => None,
    };
    let fixed = fixed.map(|fixed| FixedPlan { plan: fixed.plan.in_groups(groups), ..fixed });
    let ranks = fixed.as_ref().or(kept).map(|fixed| fixed.plan.world_size());
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
    let tiling = match fixed {
        Some(FixedPlan { plan, sharding }) => {
            Tiling::Fixed(FixedPlan { plan: plan.on_hosts(hosts), sharding })
        }
        None => {
            let saved = || resumed.map(|resumed| resumed.rule(tables)).transpose();
            let sharding = match train.sharding {
                Some(ShardingChoice::Rule(sharding)) => Some(sharding),
                Some(ShardingChoice::Auto) => None,
                None => saved()?,
            };
            let mut sharding = sharding.unwrap_or(Sharding::Table);
            if started.is_some() && sharding.is_by_host() && hosts.host_count() == 1 {
                // Scripts also pass the same options for any number of hosts.
                let name = sharding.name();
                console.say(format_args!(
                    "--sharding {name}: there is one host, on which it is the same plan as \
                     --sharding row"
                ));
                sharding = Sharding::Row;
            }
            Tiling::new(sharding, hosts, groups)?
        }
    };
    tiling.check_averages()?;
    Ok(tiling)
}

/// Searches for a plan if `--sharding auto` requests one and no earlier run has a plan. The rows of
/// all tables must be known.
///
/// # Errors
/// No plan fits into memory, or hosts have different numbers of ranks.
pub fn search_tiling(
    train: &Train,
    tiling: Tiling,
    config: &JobConfig,
    device: &ComputeDevice,
    session: &Session,
) -> Result<Tiling, Error> {
    let is_auto = train.sharding == Some(ShardingChoice::Auto);
    match tiling {
        Tiling::Made(_, hosts, groups) if is_auto && hosts.world_size() > 1 => {
            let count = groups.count.get();
            let plan = auto_plan::plan_for_run(config, &hosts, count, device, session)?;
            Ok(Tiling::Fixed(FixedPlan { plan: plan.in_groups(groups), sharding: None }))
        }
        other => {
            if is_auto && matches!(other, Tiling::Made(..)) {
                session.console.say("--sharding auto: there is one rank, which holds all tables");
            } else if is_auto {
                session.console.say("--sharding auto: the run keeps its plan");
            } else if ::plan::limits_plans(&config.plan) {
                session.console.say(
                    "[plan] of the configuration limits --sharding auto and rowmill plan, but not \
                     the plan of this run",
                );
            }
            Ok(other)
        }
    }
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
