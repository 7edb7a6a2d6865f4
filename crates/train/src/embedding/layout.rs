//! Maps pooled columns to tiles and ranks, by unrolling the sharding plan over features.
//!
//! A position of a sequence is a slot like a feature, with bags of at most one id. The lookup then
//! writes each row where the interaction reads it, and writes zeros where an id is absent. The
//! layout is the same on every rank, so ranks need not announce what they send.

use std::ops::Range;

use schema::{ModelConfig, Pooling, Rank, ShardingPlan, TableConfig, Tile};

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
    /// First column of the slot in the owner's local output `[B_global, width]`.
    pub local_column: usize,
    /// The rank that owns the tile.
    pub rank: Rank,
    /// Index of the tile among the owner's tiles.
    pub tile: usize,
    /// Whether the slot's bags are averaged. The sums of bags are scaled by 1/L, which is known
    /// before rows are split.
    pub mean: bool,
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
    /// All slots of tiles in the order in which partial sums are added: by feature, first row,
    /// first column. The order does not depend on the owner of a tile, so neither does the sum.
    pub in_sum_order: Vec<Slot>,
    /// The sum of D over the slots of rank r is `widths[r]`.
    pub widths: Vec<usize>,
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
        let group_size = plan.group_size() as usize;
        let mut layout = Self {
            slots: vec![Vec::new(); group_size],
            widths: vec![0; group_size],
            pooled_width: model.pooled_width(),
            ..Self::default()
        };
        let held = tiles_by_table(model, plan.tiles(), group_size);
        for (feature, described) in model.features().iter().enumerate() {
            let table = &model.tables[described.table];
            layout.features.push(FeatureRows { table: table.name.clone(), rows: table.rows });
            let first = |tile: usize, held: &Tile, local_column: usize| Slot {
                feature,
                position: None,
                all_rows: held.rows == (0..table.rows),
                first: held.rows.start == 0,
                rows: held.rows.start as i64..held.rows.end as i64,
                dim: held.dim(),
                column: described.column + held.columns.start,
                local_column,
                rank: held.rank,
                tile,
                mean: table.pooling == Pooling::Mean,
            };
            let is_of_table = |tile: &&Tile| tile.table.index() == described.table;
            if let Some(tile) = whole_tiles.iter().position(is_of_table) {
                let first = first(tile, whole_tiles[tile], described.column);
                layout.local.extend(unrolled(first, table));
                continue;
            }
            layout.tiled_width += table.dim * table.vectors();
            for rank in 0..group_size {
                let own =
                    held[described.table].iter().filter(|(_, held)| held.rank.index() == rank);
                for &(tile, held) in own {
                    let first = first(tile, held, layout.widths[rank]);
                    layout.widths[rank] += held.dim() * table.vectors();
                    layout.slots[rank].extend(unrolled(first, table));
                }
            }
        }
        layout.in_sum_order = layout.slots.iter().flatten().cloned().collect();
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

/// Lists the tiles of each table in plan order, each with its index among its owner's tiles.
fn tiles_by_table<'a>(
    model: &ModelConfig,
    tiles: &'a [Tile],
    group_size: usize,
) -> Vec<Vec<(usize, &'a Tile)>> {
    let mut tables = vec![Vec::new(); model.tables.len()];
    let mut counts = vec![0; group_size];
    for tile in tiles {
        let count = &mut counts[tile.rank.index()];
        tables[tile.table.index()].push((*count, tile));
        *count += 1;
    }
    tables
}

/// Derives the slots of all vectors of a bag from the first slot.
fn unrolled(first: Slot, table: &TableConfig) -> impl Iterator<Item = Slot> {
    let (length, dim) = (table.sequence_length, table.dim);
    (0..table.vectors()).map(move |position| Slot {
        position: length.map(|_| position),
        column: first.column + position * dim,
        local_column: first.local_column + position * first.dim,
        ..first.clone()
    })
}
