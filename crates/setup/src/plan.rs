//! Finds the sharding plan of a job, which is one of the ready-made tilings or a plan from a JSON
//! file.

use std::path::Path;

use schema::{ReplicaGroups, ShardingPlan, TableConfig, TableId, Tile};
use serde::Deserialize;
use serde::de::Error as _;

use crate::args::{RANKS_MAX, Sharding};
use crate::error::{Error, UsageError};

/// The content of the file that `--plan FILE.json` names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    world_size: u32,
    #[serde(default)]
    tiles: Vec<Tile>,
    /// Tables that every rank holds whole.
    #[serde(default)]
    replicated: Vec<TableId>,
}

/// A rule that divides tables among ranks. The rule becomes a plan once the tables are known.
#[derive(Clone, Debug)]
pub enum Tiling {
    /// A ready-made rule, with the number of ranks.
    Made(Sharding, u32),
    /// A ready-made rule with the number of ranks of one group, which all groups repeat.
    Grouped(Sharding, u32, ReplicaGroups),
    /// A plan from a file, which fits only the tables for which it was written.
    File(ShardingPlan),
}

impl Tiling {
    /// Creates the plan for `tables` from this rule.
    pub fn plan(&self, tables: &[TableConfig]) -> ShardingPlan {
        match self {
            Self::Made(Sharding::Table, ranks) => ShardingPlan::table_wise(tables, *ranks),
            Self::Made(Sharding::Row, ranks) => ShardingPlan::row_wise(tables, *ranks),
            Self::Made(Sharding::Column, ranks) => ShardingPlan::column_wise(tables, *ranks),
            Self::Made(Sharding::Mixed, ranks) => ShardingPlan::mixed(tables, *ranks),
            Self::Made(Sharding::Replicated, ranks) => ShardingPlan::replicate(tables, *ranks),
            Self::Grouped(sharding, ranks, groups) => {
                Self::Made(*sharding, *ranks).plan(tables).in_groups(*groups)
            }
            Self::File(plan) => plan.clone(),
        }
    }

    /// Returns the groups of ranks that repeat the plan.
    pub fn groups(&self) -> ReplicaGroups {
        match self {
            Self::Made(..) => ReplicaGroups::SINGLE,
            Self::Grouped(_, _, groups) => *groups,
            Self::File(plan) => plan.groups(),
        }
    }

    /// Returns the number of ranks of all groups.
    pub fn world_size(&self) -> u32 {
        match self {
            Self::Made(_, ranks) => *ranks,
            Self::Grouped(_, ranks, groups) => ranks.saturating_mul(groups.count.get()),
            Self::File(plan) => plan.world_size(),
        }
    }
}

/// Reads a sharding plan from a JSON file and checks that it fits `tables`.
pub fn read(path: &Path, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    parse(path, &text, tables)
}

/// Parses a sharding plan. `path` is the origin of the text and appears in errors.
pub fn parse(path: &Path, text: &str, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let malformed = |source| Error::from(UsageError::PlanFile { path: path.to_owned(), source });
    let file: PlanFile = serde_json::from_str(text).map_err(malformed)?;
    if !(1..=RANKS_MAX).contains(&file.world_size) {
        let got = file.world_size;
        let text = format!("world_size: expected 1..={RANKS_MAX}, got {got}");
        return Err(malformed(serde_json::Error::custom(text)));
    }
    let PlanFile { world_size, tiles, replicated } = file;
    let plan = ShardingPlan::with_replicas(world_size, tiles, &replicated, tables);
    Ok(plan
        .map_err(|source| UsageError::Plan { path: path.to_owned(), source: Box::new(source) })?)
}
