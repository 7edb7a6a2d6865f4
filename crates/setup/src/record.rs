//! Writes and reads `RUN/run.json`, which records how a run was started, so that the run can be
//! resumed with its folder alone. A checkpoint also contains the configuration and takes
//! precedence. `run.json` serves runs without a checkpoint, and holds settings that checkpoints
//! lack.

use std::io::Write as _;
use std::path::Path;

use data::Strictness;
use device::Isa;
use device::cpu::Bf16Products;
use report::training::RankPlacement;
use schema::{JobConfig, ReplicaGroups, Schedule, ShardingPlan, Share, TableId, Tile};
use serde::{Deserialize, Serialize};
use train::checkpoint::{self, Checkpoint, Manifest};

use crate::args::Sharding;
use crate::config::ResolvedJob;
use crate::error::{Error, UsageError};
use crate::output;
use crate::plan::{FixedPlan, Tiling};

const VERSION: u32 = 1;

/// The content of the file `run.json`.
#[derive(Debug, Serialize, Deserialize)]
struct ResolvedRecord {
    version: u32,
    /// The path or the name of the configuration, as the user gave it.
    origin: String,
    /// The configuration as TOML, with all defaults filled in.
    config: String,
    /// Share of malformed rows that is allowed.
    malformed_max: f64,
    strict: bool,
    /// Number of ranks of a replica group.
    world_size: u32,
    #[serde(default, skip_serializing_if = "ReplicaGroups::is_single")]
    groups: ReplicaGroups,
    tiles: Vec<Tile>,
    /// Tables that every rank holds whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replicated: Vec<TableId>,
    /// The rule that made the plan of a replica group. `None` for the plan of a file, and in the
    /// records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharding: Option<Sharding>,
    /// Number of hosts of all ranks. `None` in the records of earlier versions.
    #[serde(default)]
    hosts: Option<usize>,
    /// Number of threads of each rank. `None` in the records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    threads_per_rank: Option<usize>,
    /// Name of the instruction with which the CPU of this run multiplies bf16 matrices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bf16_products: Option<String>,
    /// The exchanges that ran beside other stages.
    #[serde(default)]
    schedule: Schedule,
}

/// The plan of a run as it was saved, before it is compared with the tables.
struct SavedPlan {
    world_size: u32,
    groups: ReplicaGroups,
    tiles: Vec<Tile>,
    replicated: Vec<TableId>,
}

/// The settings with which a run is resumed.
pub struct Resumed {
    /// The configuration, with the overrides of `--set` applied.
    pub job: ResolvedJob,
    /// The sharding plan, or `None` if it does not fit the tables after the overrides.
    pub plan: Option<FixedPlan>,
    /// The rule for malformed rows, or `None` for runs without `run.json`.
    pub strictness: Option<Strictness>,
}

/// Writes `run.json` when a run starts.
pub fn write(
    run: &Path,
    job: &ResolvedJob,
    tiling: &Tiling,
    strictness: Strictness,
    products: Option<Bf16Products>,
    schedule: Schedule,
    threads_per_rank: usize,
) -> Result<(), Error> {
    let malformed_max = match strictness {
        Strictness::Stop => 0.0,
        Strictness::AtMost(Share(max)) => max,
    };
    let origin = job.origin.clone();
    let refused =
        |source| UsageError::Config { origin: job.origin.clone(), source: Box::new(source) };
    let plan = tiling.plan(&job.config.model.tables);
    let record = ResolvedRecord {
        version: VERSION,
        origin,
        config: job.config.to_toml().map_err(refused)?,
        malformed_max,
        strict: strictness == Strictness::Stop,
        world_size: plan.group_size(),
        groups: plan.groups(),
        tiles: plan.tiles().to_vec(),
        replicated: plan.replicated(),
        sharding: tiling.sharding(),
        hosts: Some(plan.hosts().host_count()),
        threads_per_rank: Some(threads_per_rank),
        bf16_products: products.map(|products| products.name().to_owned()),
        schedule,
    };
    let text = serde_json::to_vec_pretty(&record)?;
    let path = run.join("run.json");
    output::put(&path, |file| file.write_all(&text).map_err(Error::io(&path, "write")))
}

/// Reads the settings of the run in the folder `run`. The settings come from the chosen or newest
/// checkpoint, and from `run.json`.
pub fn resumed(
    run: &Path,
    resume_from: Option<&Path>,
    set: &[(String, String)],
) -> Result<Resumed, Error> {
    let record = read(run);
    let newest = match resume_from {
        Some(chosen) => Some(chosen.to_owned()),
        None => checkpoint::list(run)?.pop(),
    };
    let origin = record.as_ref().map_or_else(|| run.display().to_string(), |r| r.origin.clone());
    let refused = |source| UsageError::Config { origin: origin.clone(), source: Box::new(source) };
    let (text, saved) = match (&newest, &record) {
        (Some(folder), _) => {
            let checkpoint = Checkpoint::open(folder)?;
            let Manifest { world_size, groups, plan, replicated, .. } =
                checkpoint.manifest().clone();
            let text = checkpoint.config().to_toml().map_err(refused)?;
            (text, SavedPlan { world_size, groups, tiles: plan, replicated })
        }
        (None, Some(record)) => {
            let ResolvedRecord { world_size, groups, tiles, replicated, .. } = record;
            let saved = SavedPlan {
                world_size: *world_size,
                groups: *groups,
                tiles: tiles.clone(),
                replicated: replicated.clone(),
            };
            (record.config.clone(), saved)
        }
        (None, None) => return Err(UsageError::NothingToResume { run: run.to_owned() }.into()),
    };
    let config = JobConfig::parse(&text, set).map_err(refused)?;
    let SavedPlan { world_size, groups, tiles, replicated } = saved;
    let sharding = record.as_ref().and_then(|record| record.sharding);
    let strictness = record.map(|record| match record.strict {
        true => Strictness::Stop,
        false => Strictness::AtMost(Share(record.malformed_max)),
    });
    // An imported checkpoint has the plan of its import, which fits its tables too.
    let tables = &config.model.tables;
    let plan = ShardingPlan::with_replicas(world_size, tiles, &replicated, tables).ok();
    let plan = plan.map(|plan| FixedPlan { plan: plan.in_groups(groups), sharding });
    Ok(Resumed { job: ResolvedJob { origin, config }, plan, strictness })
}

/// Returns the way in which the run in the folder `run` multiplies bf16 matrices. Earlier versions
/// of rowmill did not record it, and used the instruction for pairs on every CPU that has it.
pub fn bf16_products(run: &Path) -> Option<Bf16Products> {
    let record = read(run)?;
    match record.bf16_products {
        Some(name) => Bf16Products::from_name(&name),
        None => Isa::detect().with_bf16_products(Bf16Products::Pairs).map(Isa::bf16_products),
    }
}

/// Returns the schedule of the run in the folder `run`, if it is recorded.
pub fn schedule(run: &Path) -> Option<Schedule> {
    read(run).map(|record| record.schedule)
}

/// Returns the number of threads of each rank of the run in the folder `run`, if it is recorded.
pub fn threads_per_rank(run: &Path) -> Option<usize> {
    read(run)?.threads_per_rank
}

/// Returns the ranks of the run in the folder `run`, if they are recorded.
pub fn placement(run: &Path) -> Option<RankPlacement> {
    let ResolvedRecord { world_size, groups, hosts, .. } = read(run)?;
    let groups = groups.count.get();
    Some(RankPlacement { ranks: world_size.saturating_mul(groups), groups, hosts })
}

/// Reads the configuration of the run in the folder `run`, if it is recorded.
pub fn config(run: &Path) -> Option<JobConfig> {
    if let Some(record) = read(run) {
        return JobConfig::parse(&record.config, &[]).ok();
    }
    let newest = checkpoint::list(run).ok()?.pop()?;
    Checkpoint::open(&newest).ok().map(|checkpoint| checkpoint.config().clone())
}

fn read(run: &Path) -> Option<ResolvedRecord> {
    let text = std::fs::read(run.join("run.json")).ok()?;
    let record: ResolvedRecord = serde_json::from_slice(&text).ok()?;
    (record.version == VERSION).then_some(record)
}
