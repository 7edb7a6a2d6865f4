//! TorchRec's plan files: the JSON form of its `ShardingPlan`, and the conversion of plans.

use std::collections::BTreeMap;
use std::ops::Range;

use schema::{HostLayout, Rank, ShardingPlan, TableConfig, TableId, Tile};
use serde::{Deserialize, Serialize};

use super::error::TorchrecError;
use super::sharding::{ComputeKernel, ShardingType};
use super::topology::PlannedDevice;

/// A plan in the form of TorchRec's `ShardingPlan`: shardings by the path of a module and the name
/// of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchrecPlan {
    pub plan: BTreeMap<String, ModuleShardings>,
}

/// The shardings of a module by the name of the table. TorchRec serializes an
/// `EmbeddingModuleShardingPlan` in this form.
pub type ModuleShardings = BTreeMap<String, ParameterSharding>;

impl From<ModuleShardings> for TorchrecPlan {
    fn from(shardings: ModuleShardings) -> Self {
        Self { plan: BTreeMap::from([(String::new(), shardings)]) }
    }
}

impl TorchrecPlan {
    /// Returns the number of ranks that the plan names.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        let shardings = self.plan.values().flat_map(BTreeMap::values);
        let ranks = shardings.filter_map(|sharding| sharding.ranks.as_ref()).flatten();
        ranks.max().map_or(1, |last| last.saturating_add(1))
    }
}

/// The sharding of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterSharding {
    pub sharding_type: String,
    pub compute_kernel: String,
    /// The rank of each shard.
    #[serde(default)]
    pub ranks: Option<Vec<u32>>,
    /// Absent for a replicated table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<ShardMetadata>>,
}

/// The place of a shard in its table, and the device that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardMetadata {
    /// First row and first column.
    pub shard_offsets: [u64; 2],
    /// Number of rows and of columns. TorchRec lists empty shards too.
    pub shard_sizes: [u64; 2],
    /// A rank and the number of its device on the host, such as `rank:9/cuda:1`.
    pub placement: String,
}

/// Converts a plan to TorchRec's form, for the module at the path `module`.
///
/// # Errors
/// [`TorchrecError::Inexpressible`] names a table whose tiles TorchRec cannot shard, and
/// [`TorchrecError::PlanForm`] the part of the plan that its form lacks.
pub fn export_plan(
    plan: &ShardingPlan,
    tables: &[TableConfig],
    module: &str,
    device: PlannedDevice,
) -> Result<TorchrecPlan, TorchrecError> {
    if plan.groups().count.get() > 1 {
        return Err(TorchrecError::PlanForm("replica groups"));
    }
    let hosts = plan.hosts();
    let is_contiguous = hosts.hosts().is_sorted();
    if hosts.ranks_per_host().is_err() || !is_contiguous {
        return Err(TorchrecError::PlanForm("hosts other than runs of equally many ranks"));
    }
    let all: Vec<Rank> = (0..plan.group_size()).map(Rank).collect();
    let form = PlanForm { device, hosts, all: &all };
    let mut shardings = BTreeMap::new();
    for (id, table) in (0..).map(TableId).zip(tables) {
        let tiles: Vec<&Tile> = plan.tiles().iter().filter(|tile| tile.table == id).collect();
        let sharding = match tiles.is_empty() {
            true => form.describe(ShardingType::DataParallel, &all, None),
            false => form.export_table(table, &tiles)?,
        };
        shardings.insert(table.name.clone(), sharding);
    }
    Ok(TorchrecPlan { plan: BTreeMap::from([(module.to_owned(), shardings)]) })
}

/// The tiles of some columns of a table, in the order of rows.
struct ColumnPart<'a> {
    columns: Range<usize>,
    tiles: Vec<&'a Tile>,
}

impl ColumnPart<'_> {
    /// Whether the tiles are blocks of ⌈R ÷ ranks⌉ rows on `ranks`, in order.
    fn is_split_over(&self, ranks: &[Rank], rows: u64) -> bool {
        let blocks = ranks.iter().zip(row_blocks(ranks.len(), rows));
        let blocks = blocks.filter(|(_, rows)| !rows.is_empty());
        self.tiles.iter().map(|tile| (&tile.rank, tile.rows.clone())).eq(blocks)
    }

    fn is_whole(&self, rows: u64) -> bool {
        self.tiles.len() == 1 && self.tiles[0].rows == (0..rows)
    }
}

/// Groups tiles by their columns, in the order of columns.
fn column_parts<'a>(tiles: &[&'a Tile]) -> Vec<ColumnPart<'a>> {
    let mut parts: BTreeMap<(usize, usize), Vec<&Tile>> = BTreeMap::new();
    for &tile in tiles {
        parts.entry((tile.columns.start, tile.columns.end)).or_default().push(tile);
    }
    let part = |((start, end), tiles)| ColumnPart { columns: start..end, tiles };
    parts.into_iter().map(part).collect()
}

/// Returns the blocks of ⌈R ÷ count⌉ rows. The last may be short or empty.
fn row_blocks(count: usize, rows: u64) -> impl Iterator<Item = Range<u64>> {
    let block = rows.div_ceil(count.max(1) as u64);
    (0..count as u64).map(move |i| (i * block).min(rows)..((i + 1) * block).min(rows))
}

/// What all tables of an exported plan share.
struct PlanForm<'a> {
    device: PlannedDevice,
    hosts: &'a HostLayout,
    all: &'a [Rank],
}

impl PlanForm<'_> {
    fn export_table(
        &self,
        table: &TableConfig,
        tiles: &[&Tile],
    ) -> Result<ParameterSharding, TorchrecError> {
        let parts = column_parts(tiles);
        let rows = table.rows;
        if parts.len() > 1 && parts.iter().any(|part| !part.columns.len().is_multiple_of(4)) {
            let reason = "parts of columns must have a multiple of 4 columns";
            return Err(TorchrecError::Inexpressible { table: table.name.clone(), reason });
        }
        let host_of = |part: &ColumnPart<'_>| {
            let ranks = self.hosts.ranks_of(self.hosts.host(part.tiles[0].rank));
            part.is_split_over(ranks, rows).then_some(ranks)
        };
        let (sharding, ranks): (_, Vec<&[Rank]>) = if parts.iter().all(|part| part.is_whole(rows)) {
            let ranks = parts.iter().map(|part| std::slice::from_ref(&part.tiles[0].rank));
            let is_one = parts.len() == 1;
            let sharding = if is_one { ShardingType::TableWise } else { ShardingType::ColumnWise };
            (sharding, ranks.collect())
        } else if parts.len() == 1 && parts[0].is_split_over(self.all, rows) {
            (ShardingType::RowWise, vec![self.all])
        } else if let Some(ranks) = parts.iter().map(host_of).collect::<Option<Vec<_>>>() {
            let is_one = parts.len() == 1;
            let sharding =
                if is_one { ShardingType::TableRowWise } else { ShardingType::GridShard };
            (sharding, ranks)
        } else {
            let reason = "rows must be whole, or split into equal blocks over all ranks or over \
                          the ranks of one host, in the order of ranks";
            return Err(TorchrecError::Inexpressible { table: table.name.clone(), reason });
        };
        let mut shards = Vec::new();
        for (part, ranks) in parts.iter().zip(&ranks) {
            for (&rank, rows) in ranks.iter().zip(row_blocks(ranks.len(), rows)) {
                shards.push(self.describe_shard(rank, rows, part.columns.clone()));
            }
        }
        Ok(self.describe(sharding, &ranks.concat(), Some(shards)))
    }

    fn describe(
        &self,
        sharding: ShardingType,
        ranks: &[Rank],
        shards: Option<Vec<ShardMetadata>>,
    ) -> ParameterSharding {
        ParameterSharding {
            sharding_type: sharding.name().to_owned(),
            compute_kernel: sharding.kernel().name().to_owned(),
            ranks: Some(ranks.iter().map(|rank| rank.0).collect()),
            shards,
        }
    }

    fn describe_shard(&self, rank: Rank, rows: Range<u64>, columns: Range<usize>) -> ShardMetadata {
        let device = self.device.name();
        let placement = match self.device {
            PlannedDevice::Gpu => format!("rank:{}/{device}:{}", rank.0, self.hosts.place(rank)),
            PlannedDevice::Cpu => format!("rank:{}/{device}", rank.0),
        };
        ShardMetadata {
            shard_offsets: [rows.start, columns.start as u64],
            shard_sizes: [rows.end - rows.start, columns.len() as u64],
            placement,
        }
    }
}

/// Converts a plan of TorchRec to one for the tables of a model, whose ranks lie on `hosts`. The
/// paths of modules and the devices of placements have no meaning for rowmill.
///
/// # Errors
/// A [`TorchrecError`] that names the table and the entry that rowmill cannot express, or the tile
/// that is missing or overlaps another.
pub fn import_plan(
    file: &TorchrecPlan,
    tables: &[TableConfig],
    hosts: &HostLayout,
) -> Result<ShardingPlan, TorchrecError> {
    let mut shardings: BTreeMap<&str, &ParameterSharding> = BTreeMap::new();
    for (name, sharding) in file.plan.values().flatten() {
        let table = name.clone();
        if !tables.iter().any(|table| table.name == *name) {
            return Err(TorchrecError::UnknownTable { table });
        }
        if shardings.insert(name, sharding).is_some() {
            return Err(TorchrecError::TableTwice { table });
        }
    }
    let ranks = hosts.world_size() as u32;
    let (mut tiles, mut replicated) = (Vec::new(), Vec::new());
    for (id, table) in (0..).map(TableId).zip(tables) {
        let missing = || TorchrecError::MissingTable { table: table.name.clone() };
        let sharding = shardings.get(&*table.name).ok_or_else(missing)?;
        match find_type(table, sharding)? {
            ShardingType::DataParallel => {
                check_replica(table, sharding, ranks)?;
                replicated.push(id);
            }
            _ => push_tiles(id, table, sharding, ranks, &mut tiles)?,
        }
    }
    let plan = ShardingPlan::with_replicas(ranks, tiles, &replicated, tables)?;
    Ok(plan.on_hosts(hosts.clone()))
}

/// Returns the sharding type of a table, and checks its kernel.
fn find_type(
    table: &TableConfig,
    sharding: &ParameterSharding,
) -> Result<ShardingType, TorchrecError> {
    let kernel = &sharding.compute_kernel;
    if ![ComputeKernel::Dense, ComputeKernel::Fused].iter().any(|known| known.name() == kernel) {
        let expected = "dense or fused, because tables are neither cached nor quantized";
        return Err(entry(table, "compute_kernel", expected, kernel));
    }
    let name = &sharding.sharding_type;
    let types = ShardingType::ALL.map(ShardingType::name).join(", ");
    let found = ShardingType::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| entry(table, "sharding_type", &format!("one of {types}"), name))
}

fn check_replica(
    table: &TableConfig,
    sharding: &ParameterSharding,
    ranks: u32,
) -> Result<(), TorchrecError> {
    if sharding.shards.is_some() {
        return Err(entry(table, "shards", "none of a replicated table", "some"));
    }
    let listed = sharding.ranks.as_deref().unwrap_or_default();
    let is_on_all = listed.iter().copied().eq(0..ranks);
    if is_on_all || sharding.ranks.is_none() {
        return Ok(());
    }
    let expected = format!("all {ranks} ranks, because rowmill replicates a table on every rank");
    Err(entry(table, "ranks", &expected, &format!("{listed:?}")))
}

fn push_tiles(
    id: TableId,
    table: &TableConfig,
    sharding: &ParameterSharding,
    ranks: u32,
    tiles: &mut Vec<Tile>,
) -> Result<(), TorchrecError> {
    let Some(shards) = &sharding.shards else {
        return Err(entry(table, "shards", "a list", "none"));
    };
    if let Some(listed) = &sharding.ranks
        && listed.len() != shards.len()
    {
        let expected = format!("one for each of the {} shards", shards.len());
        return Err(entry(table, "ranks", &expected, &listed.len().to_string()));
    }
    for (i, shard) in shards.iter().enumerate() {
        let rank = find_rank(table, shard, ranks)?;
        let listed = sharding.ranks.as_ref().map_or(rank, |ranks| ranks[i]);
        if listed != rank {
            let expected = format!("rank {rank}, which is that of the placement of shard {i}");
            return Err(entry(table, "ranks", &expected, &listed.to_string()));
        }
        let [first_row, first_column] = shard.shard_offsets;
        let [rows, columns] = shard.shard_sizes;
        let ends = [first_row.saturating_add(rows), first_column.saturating_add(columns)];
        if ends[0] > table.rows || ends[1] > table.dim as u64 {
            let expected = format!("an end of at most {} rows, {} columns", table.rows, table.dim);
            let got = format!("{} rows, {} columns", ends[0], ends[1]);
            return Err(entry(table, "shards", &expected, &got));
        }
        if rows > 0 && columns > 0 {
            let columns = first_column as usize..ends[1] as usize;
            tiles.push(Tile { table: id, rows: first_row..ends[0], columns, rank: Rank(rank) });
        }
    }
    Ok(())
}

/// Returns the rank of a placement.
fn find_rank(table: &TableConfig, shard: &ShardMetadata, ranks: u32) -> Result<u32, TorchrecError> {
    let text = &shard.placement;
    let number = text.strip_prefix("rank:").and_then(|rest| rest.split('/').next());
    let rank = number.and_then(|number| number.parse().ok()).filter(|&rank| rank < ranks);
    let expected = || format!("rank:N/DEVICE with N below {ranks}, the number of ranks");
    rank.ok_or_else(|| entry(table, "placement", &expected(), text))
}

fn entry(table: &TableConfig, what: &'static str, expected: &str, got: &str) -> TorchrecError {
    let (table, expected, got) = (table.name.clone(), expected.to_owned(), got.to_owned());
    TorchrecError::Entry { table, what, expected, got }
}
