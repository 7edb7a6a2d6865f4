//! Which sharding plan is meant: one of the ready-made tilings, or a file's.

use std::path::Path;

use schema::{ShardingPlan, TableConfig, Tile};
use serde::Deserialize;
use serde::de::Error as _;

use crate::args::{RANKS_MAX, Sharding};
use crate::error::{Error, UsageError};

/// The form of `--plan FILE.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    world_size: u32,
    tiles: Vec<Tile>,
}

/// How tables are split over ranks, whatever tables there are.
#[derive(Clone, Debug)]
pub enum Tiling {
    /// One of the ready-made ways, over so many ranks.
    Made(Sharding, u32),
    /// A file's, for the tables it was written for.
    File(ShardingPlan),
}

impl Tiling {
    /// The plan for `tables`.
    pub fn plan(&self, tables: &[TableConfig]) -> ShardingPlan {
        match self {
            Self::Made(Sharding::Table, ranks) => ShardingPlan::table_wise(tables, *ranks),
            Self::Made(Sharding::Row, ranks) => ShardingPlan::row_wise(tables, *ranks),
            Self::Made(Sharding::Column, ranks) => ShardingPlan::column_wise(tables, *ranks),
            Self::Made(Sharding::Mixed, ranks) => ShardingPlan::mixed(tables, *ranks),
            Self::File(plan) => plan.clone(),
        }
    }
}

/// The plan in a file.
pub fn read(path: &Path, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    parse(path, &text, tables)
}

/// The plan in a text, which came from `path`.
pub fn parse(path: &Path, text: &str, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let malformed = |source| Error::from(UsageError::PlanFile { path: path.to_owned(), source });
    let file: PlanFile = serde_json::from_str(text).map_err(malformed)?;
    if !(1..=RANKS_MAX).contains(&file.world_size) {
        let got = file.world_size;
        let text = format!("world_size: expected 1..={RANKS_MAX}, got {got}");
        return Err(malformed(serde_json::Error::custom(text)));
    }
    let plan = ShardingPlan::new(file.world_size, file.tiles, tables);
    Ok(plan
        .map_err(|source| UsageError::Plan { path: path.to_owned(), source: Box::new(source) })?)
}
