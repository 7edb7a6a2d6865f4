//! Which sharding plan is meant: one of the ready-made tilings, or a file's.

use std::path::Path;

use schema::plan::PlanError;
use schema::{ShardingPlan, TableConfig, Tile};
use serde::Deserialize;
use serde::de::Error as _;

use crate::args::{RANKS_MAX, Sharding, Train};
use crate::error::Error;

/// The form of `--plan FILE.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    world_size: u32,
    tiles: Vec<Tile>,
}

/// The plan `train` asks for.
pub fn of(train: &Train, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    if let Some(path) = &train.plan {
        return read(path, tables);
    }
    let make = match train.sharding {
        Sharding::Table => ShardingPlan::table_wise,
        Sharding::Row => ShardingPlan::row_wise,
        Sharding::Column => ShardingPlan::column_wise,
        Sharding::Mixed => ShardingPlan::mixed,
    };
    Ok(make(tables, train.ranks.unwrap_or(1)))
}

fn read(path: &Path, tables: &[TableConfig]) -> Result<ShardingPlan, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let malformed = |source| Error::PlanFile { path: path.to_owned(), source };
    let file: PlanFile = serde_json::from_str(&text).map_err(malformed)?;
    if !(1..=RANKS_MAX).contains(&file.world_size) {
        let got = file.world_size;
        let text = format!("world_size: expected 1..={RANKS_MAX}, got {got}");
        return Err(malformed(serde_json::Error::custom(text)));
    }
    let refused = |source: PlanError| Error::Plan { path: path.to_owned(), source };
    ShardingPlan::new(file.world_size, file.tiles, tables).map_err(refused)
}
