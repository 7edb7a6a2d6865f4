//! `RUN/run.json`: how a run was started, so that it can be resumed by its folder alone. What it is
//! trained with is the newest checkpoint's to say; this file serves where there is none yet, and
//! for what checkpoints do not know.

use std::io::Write as _;
use std::path::Path;

use data::Strictness;
use device::Isa;
use device::cpu::Bf16Products;
use schema::{JobConfig, ShardingPlan, Share, Tile};
use serde::{Deserialize, Serialize};
use train::checkpoint::{self, Checkpoint};

use crate::config::ResolvedJob;
use crate::error::{Error, UsageError};
use crate::output;

const VERSION: u32 = 1;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct ResolvedRecord {
    version: u32,
    /// What the user called the configuration.
    origin: String,
    /// The configuration as TOML, everything filled in.
    config: String,
    /// Malformed rows allowed, as a share.
    malformed_max: f64,
    strict: bool,
    world_size: u32,
    tiles: Vec<Tile>,
    /// How this run's CPU multiplies bf16, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bf16_products: Option<String>,
}

/// A run as it was started.
pub struct Resumed {
    /// Its configuration, with what `--set` changes.
    pub job: ResolvedJob,
    /// How tables are split.
    pub plan: Option<ShardingPlan>,
    /// What malformed rows do; none where the run does not say.
    pub strictness: Option<Strictness>,
}

/// Writes how a run is started.
pub fn write(
    run: &Path,
    job: &ResolvedJob,
    plan: &ShardingPlan,
    strictness: Strictness,
    products: Option<Bf16Products>,
) -> Result<(), Error> {
    let malformed_max = match strictness {
        Strictness::Stop => 0.0,
        Strictness::AtMost(Share(max)) => max,
    };
    let origin = job.origin.clone();
    let refused =
        |source| UsageError::Config { origin: job.origin.clone(), source: Box::new(source) };
    let record = ResolvedRecord {
        version: VERSION,
        origin,
        config: job.config.to_toml().map_err(refused)?,
        malformed_max,
        strict: strictness == Strictness::Stop,
        world_size: plan.world_size(),
        tiles: plan.tiles().to_vec(),
        bf16_products: products.map(|products| products.name().to_owned()),
    };
    let text = serde_json::to_vec_pretty(&record)?;
    let path = run.join("run.json");
    output::put(&path, |file| file.write_all(&text).map_err(Error::io(&path, "write")))
}

/// The run in `run`, as its newest checkpoint and `run.json` have it.
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
    let (text, tiling) = match (&newest, &record) {
        (Some(folder), _) => {
            let checkpoint = Checkpoint::open(folder)?;
            let manifest = checkpoint.manifest();
            let text = checkpoint.config().to_toml().map_err(refused)?;
            (text, (manifest.world_size, manifest.plan.clone()))
        }
        (None, Some(record)) => (record.config.clone(), (record.world_size, record.tiles.clone())),
        (None, None) => return Err(UsageError::NothingToResume { run: run.to_owned() }.into()),
    };
    let config = JobConfig::parse(&text, set).map_err(refused)?;
    let (world_size, tiles) = tiling;
    let strictness = record.map(|record| match record.strict {
        true => Strictness::Stop,
        false => Strictness::AtMost(Share(record.malformed_max)),
    });
    // An imported checkpoint has the plan of its import, which fits too.
    let plan = ShardingPlan::new(world_size, tiles, &config.model.tables).ok();
    Ok(Resumed { job: ResolvedJob { origin, config }, plan, strictness })
}

/// How the run in `run` multiplies bf16, if it says so. Runs that do not are of earlier versions,
/// which used the instruction for pairs wherever there was one.
pub fn bf16_products(run: &Path) -> Option<Bf16Products> {
    let record = read(run)?;
    match record.bf16_products {
        Some(name) => Bf16Products::from_name(&name),
        None => Isa::detect().with_bf16_products(Bf16Products::Pairs).map(Isa::bf16_products),
    }
}

/// The configuration of the run in `run`, if it is known.
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
