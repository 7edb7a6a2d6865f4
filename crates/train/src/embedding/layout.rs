//! Maps pooled columns to tiles and to the messages that carry them, by unrolling the sharding plan
//! over features.
//!
//! A position of a sequence is a slot like a feature, with bags of at most one id. The lookup then
//! writes each row where the interaction reads it, and writes zeros where an id is absent. The
//! layout is the same on every rank, so ranks need not announce what they send.
//!
//! A rank receives one message of each rank, and one of each host: the sums of the tiles that the
//! host adds up.

use std::ops::Range;

use device::ops::jagged::IdSlot;
use schema::{ModelConfig, Pooling, ShardingPlan, TableConfig, Tile};

/// One feature, or one position of a sequence feature, that is looked up in one tile. If a table's
/// rows are split, its tiles give partial sums of the same columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the feature in the batch's order.
    pub feature: usize,
    /// Position of the single id that is looked up, for a feature that is a sequence.
    pub position: Option<usize>,
    pub rows: Range<i64>,
    /// Whether the tile holds all rows, so that no id has to be filtered.
    pub all_rows: bool,
    /// Whether the tile starts at row 0. The partial sum of this tile is written, and partial sums
    /// of later tiles are added.
    pub first: bool,
    /// Embedding dimension D of the tile.
    pub dim: usize,
    /// First column of the slot in the pooled output `[B, ΣD]`.
    pub column: usize,
    /// The message with the slot: a rank r, or W + h for the sums of host h. Is unused for whole
    /// tables.
    pub message: usize,
    /// First column of the slot in a row of its message, or for whole tables in the pooled output.
    pub message_column: usize,
    /// Index of the tile among the owner's tiles.
    pub tile: usize,
    /// Whether the slot's bags are averaged. The sums of bags are scaled by 1/L, which is known
    /// before rows are split.
    pub mean: bool,
}

impl Slot {
    /// Returns the ids that are looked up in this slot.
    #[must_use]
    pub fn id_slot(&self) -> IdSlot {
        let Self { feature, position, ref rows, all_rows, mean, .. } = *self;
        IdSlot { feature, position, rows: rows.clone(), all_rows, mean }
    }
}

/// The name and size of a feature's table, for range checks of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureRows {
    /// Name of the feature's table.
    pub table: String,
    /// Number of rows of the whole table.
    pub rows: u64,
}

/// The estimated size of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupEstimate {
    pub ids: usize,
    pub bags: usize,
    /// Sum of D over the ids.
    pub elements: usize,
}

/// All slots of a plan: those of tiles, listed by the rank that owns them, and those of whole
/// tables in which each rank looks up its own samples. A rank is its place in the replica group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotLayout {
    /// The slots of tiles of rank r are `slots[r]`. The slots are sorted by feature, then by first
    /// row and first column of the tile, then by position.
    pub slots: Vec<Vec<Slot>>,
    /// The slots that receivers add up, in this order: by feature, first row, first column. The
    /// order does not depend on the owner of a tile, so neither does the sum. A sum of a host has
    /// one slot, that of its first rows.
    pub in_sum_order: Vec<Slot>,
    /// Number of columns of each message.
    pub widths: Vec<usize>,
    /// Host of each rank.
    hosts: Vec<usize>,
    /// Sum of D over the vectors of all features.
    pub pooled_width: usize,
    /// Sum of D over the vectors that are looked up in tiles.
    pub tiled_width: usize,
    /// Table of each feature.
    pub features: Vec<FeatureRows>,
    /// Whether any bag that is looked up in tiles is averaged.
    pub any_mean: bool,
    /// Slots of whole tables, in which each rank looks up its own samples directly into the pooled
    /// output: replicated tables, or all tables of a single rank.
    pub local: Vec<Slot>,
    /// Whether any bag that is looked up in whole tables is averaged.
    pub any_local_mean: bool,
    /// Whether the slots of whole tables equal the features, so that the batch's ids are used
    /// unchanged.
    pub as_given: bool,
    /// Number of rows of each whole table that several ranks hold.
    pub replica_rows: Vec<u64>,
}

impl SlotLayout {
    /// Unrolls `plan` over the features of `model`. The plan must be made for the model's tables.
    #[must_use]
    pub fn new(model: &ModelConfig, plan: &ShardingPlan) -> Self {
        let whole_tiles = whole_tiles(model, plan);
        let (group_size, hosts) = (plan.group_size() as usize, plan.hosts());
        let mut layout = Self {
            slots: vec![Vec::new(); group_size],
            widths: vec![0; group_size + hosts.host_count()],
            hosts: hosts.hosts().to_vec(),
            pooled_width: model.pooled_width(),
            ..Self::default()
        };
        let held = tiles_by_table(model, plan);
        for (feature, described) in model.features().iter().enumerate() {
            let table = &model.tables[described.table];
            layout.features.push(FeatureRows { table: table.name.clone(), rows: table.rows });
            let slot = |tile: usize, held: &Tile| Slot {
                feature,
                position: None,
                all_rows: held.rows == (0..table.rows),
                first: held.rows.start == 0,
                rows: held.rows.start as i64..held.rows.end as i64,
                dim: held.dim(),
                column: described.column + held.columns.start,
                message: 0,
                message_column: described.column,
                tile,
                mean: table.pooling == Pooling::Mean,
            };
            let is_of_table = |tile: &&Tile| tile.table.index() == described.table;
            if let Some(tile) = whole_tiles.iter().position(is_of_table) {
                layout.local.extend(unrolled(slot(tile, whole_tiles[tile]), table));
                continue;
            }
            layout.tiled_width += table.dim * table.vectors();
            let sums_of_feature = layout.in_sum_order.len();
            for &HeldTile { number, tile, host } in &held[described.table] {
                let message = host.map_or(tile.rank.index(), |host| group_size + host);
                let column = described.column + tile.columns.start;
                // Later rows of a host are added to its first ones.
                let mut sums = layout.in_sum_order[sums_of_feature..].iter();
                let sum = sums.find(|sum| host.is_some() && sum.column == column);
                let known_column = sum.map(|sum| sum.message_column);
                let message_column = known_column.unwrap_or(layout.widths[message]);
                let first = Slot { message, message_column, ..slot(number, tile) };
                let slots = unrolled(first, table);
                if known_column.is_none() {
                    layout.widths[message] += tile.dim() * table.vectors();
                    layout.in_sum_order.extend(slots.clone());
                }
                layout.slots[tile.rank.index()].extend(slots);
            }
        }
        layout.in_sum_order.sort_by_key(|slot| (slot.feature, slot.rows.start, slot.column));
        layout.any_mean = layout.in_sum_order.iter().any(|slot| slot.mean);
        layout.any_local_mean = layout.local.iter().any(|slot| slot.mean);
        layout.as_given = !layout.any_local_mean
            && layout.local.len() == layout.features.len()
            && layout.local.iter().all(|slot| slot.position.is_none());
        if plan.world_size() > 1 {
            let rows = |tile: &&Tile| tile.rows.end;
            layout.replica_rows = whole_tiles.iter().map(rows).collect();
        }
        layout
    }

    /// Whether any rank looks up ids in tiles for the samples of all ranks.
    #[must_use]
    pub fn has_tiles(&self) -> bool {
        !self.in_sum_order.is_empty()
    }

    /// Returns the number of ranks of a group.
    #[must_use]
    pub fn group_size(&self) -> usize {
        self.slots.len()
    }

    /// Returns the message with the sums of the host of `rank`.
    #[must_use]
    pub fn host_message(&self, rank: usize) -> usize {
        self.group_size() + self.hosts[rank]
    }

    /// Returns the number of columns of the pooled vectors of a rank's tiles: those of its own
    /// message, then those of its host's. In the columns of other ranks of the host, the vectors
    /// are zero.
    #[must_use]
    pub fn local_width(&self, rank: usize) -> usize {
        self.widths[rank] + self.widths[self.host_message(rank)]
    }

    /// Returns the number of those columns of [`Self::local_width`] that `rank` looks up.
    #[must_use]
    pub fn looked_up_width(&self, rank: usize) -> usize {
        self.slots[rank].iter().map(|slot| slot.dim).sum()
    }

    /// Returns the first column of a slot in the pooled vectors of `rank`, see
    /// [`Self::local_width`].
    #[must_use]
    pub fn local_column(&self, rank: usize, slot: &Slot) -> usize {
        let is_own = slot.message < self.group_size();
        slot.message_column + if is_own { 0 } else { self.widths[rank] }
    }

    /// Whether ranks send vectors to the ranks of their samples directly.
    #[must_use]
    pub fn sends_by_rank(&self) -> bool {
        self.widths[..self.group_size()].iter().any(|&width| width > 0)
    }

    /// Whether hosts add up vectors before they are sent.
    #[must_use]
    pub fn sends_by_host(&self) -> bool {
        self.widths[self.group_size()..].iter().any(|&width| width > 0)
    }

    /// Whether the ids for whole tables are not those of the batch.
    #[must_use]
    pub fn has_own_ids(&self) -> bool {
        !self.as_given && !self.local.is_empty()
    }
}

/// Returns the tiles in which each rank looks up its own samples: replicated tables, or all tables
/// of a single rank that holds each of them in one tile.
pub(super) fn whole_tiles<'a>(model: &ModelConfig, plan: &'a ShardingPlan) -> Vec<&'a Tile> {
    let is_whole = |tile: &Tile| {
        let table = &model.tables[tile.table.index()];
        tile.rows == (0..table.rows) && tile.dim() == table.dim
    };
    let is_alone = plan.world_size() == 1 && plan.tiles().iter().all(is_whole);
    let own = plan.tiles().iter().filter(|_| is_alone);
    own.chain(plan.replicas()).collect()
}

impl SlotLayout {
    /// Estimates the size of a lookup of `slots` for a batch, see [`Self::ids_per_bag`].
    #[must_use]
    pub fn lookup_size(
        &self,
        slots: &[Slot],
        samples: usize,
        ids_per_bag: &[f64],
    ) -> LookupEstimate {
        let (mut ids, mut elements) = (0.0, 0.0);
        for slot in slots {
            let of_slot = self.ids_per_bag(slot, ids_per_bag) * samples as f64;
            ids += of_slot;
            elements += of_slot * slot.dim as f64;
        }
        LookupEstimate {
            ids: ids as usize,
            bags: slots.len() * samples,
            elements: elements as usize,
        }
    }

    /// Estimates the mean number of ids per bag of `slot`. The estimate assumes that ids spread
    /// evenly over rows, and that each feature has `ids_per_bag` ids per bag.
    #[must_use]
    pub fn ids_per_bag(&self, slot: &Slot, ids_per_bag: &[f64]) -> f64 {
        let ids = ids_per_bag.get(slot.feature).copied().unwrap_or(1.0);
        let ids = if slot.position.is_some() { ids.min(1.0) } else { ids };
        let rows = self.features[slot.feature].rows.max(1);
        ids * (slot.rows.end - slot.rows.start) as f64 / rows as f64
    }
}

/// A tile of a plan.
struct HeldTile<'a> {
    /// Index of the tile among its owner's tiles.
    number: usize,
    tile: &'a Tile,
    /// The host that adds up the tile.
    host: Option<usize>,
}

/// Lists the tiles of each table in plan order.
fn tiles_by_table<'a>(model: &ModelConfig, plan: &'a ShardingPlan) -> Vec<Vec<HeldTile<'a>>> {
    let mut tables: Vec<Vec<HeldTile<'a>>> = model.tables.iter().map(|_| Vec::new()).collect();
    let mut counts = vec![0; plan.group_size() as usize];
    for (tile, host) in plan.tiles().iter().zip(plan.hosts_that_reduce()) {
        let number = counts[tile.rank.index()];
        tables[tile.table.index()].push(HeldTile { number, tile, host });
        counts[tile.rank.index()] += 1;
    }
    tables
}

/// Derives the slots of all vectors of a bag from the first slot.
fn unrolled(first: Slot, table: &TableConfig) -> impl Iterator<Item = Slot> + Clone {
    let (length, dim) = (table.sequence_length, table.dim);
    (0..table.vectors()).map(move |position| Slot {
        position: length.map(|_| position),
        column: first.column + position * dim,
        message_column: first.message_column + position * first.dim,
        ..first.clone()
    })
}
