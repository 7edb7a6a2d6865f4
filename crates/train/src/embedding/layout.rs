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

/// All slots of a plan, grouped by the rank that owns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotLayout {
    /// The slots of rank r are `slots[r]`. The slots are sorted by feature, then by first row and
    /// first column of the tile, then by position.
    pub slots: Vec<Vec<Slot>>,
    /// All slots in the order in which partial sums are added: by feature, first row, first column.
    /// The order does not depend on the owner of a tile, so neither does the sum.
    pub in_sum_order: Vec<Slot>,
    /// The sum of D over the slots of rank r is `widths[r]`.
    pub widths: Vec<usize>,
    /// Sum of D over the vectors of all features.
    pub pooled_width: usize,
    /// Table of each feature.
    pub features: Vec<FeatureRows>,
    /// Whether any bag is averaged.
    pub any_mean: bool,
    /// Whether one rank holds every table whole, so that the lookup writes the pooled output
    /// directly.
    pub whole: bool,
    /// Whether the slots equal the features, so that the batch's ids are used unchanged.
    pub as_given: bool,
}

impl SlotLayout {
    /// Unrolls `plan` over the features of `model`. The plan must be made for the model's tables.
    #[must_use]
    pub fn new(model: &ModelConfig, plan: &ShardingPlan) -> Self {
        let world_size = plan.world_size() as usize;
        let mut slots: Vec<Vec<Slot>> = vec![Vec::new(); world_size];
        let mut widths = vec![0; world_size];
        let mut features = Vec::new();
        let held = tiles_by_table(model, plan);
        for (feature, described) in model.features().iter().enumerate() {
            let table = &model.tables[described.table];
            features.push(FeatureRows { table: table.name.clone(), rows: table.rows });
            for rank in 0..world_size {
                let own =
                    held[described.table].iter().filter(|(_, held)| held.rank.index() == rank);
                for &(tile, held) in own {
                    let first = Slot {
                        feature,
                        position: None,
                        all_rows: held.rows == (0..table.rows),
                        first: held.rows.start == 0,
                        rows: held.rows.start as i64..held.rows.end as i64,
                        dim: held.dim(),
                        column: described.column + held.columns.start,
                        local_column: widths[rank],
                        rank: held.rank,
                        tile,
                        mean: table.pooling == Pooling::Mean,
                    };
                    widths[rank] += held.dim() * table.vectors();
                    slots[rank].extend(unrolled(first, table));
                }
            }
        }
        let mut in_sum_order: Vec<Slot> = slots.iter().flatten().cloned().collect();
        in_sum_order.sort_by_key(|slot| (slot.feature, slot.rows.start, slot.column));
        let any_mean = model.tables.iter().any(|table| table.pooling == Pooling::Mean);
        // The lookup can write the output directly only if a slot has the same columns in both.
        let in_place = |slot: &Slot| slot.all_rows && slot.local_column == slot.column;
        let whole = world_size == 1 && in_sum_order.iter().all(in_place);
        let as_given = whole
            && !any_mean
            && in_sum_order.len() == features.len()
            && in_sum_order.iter().all(|slot| slot.position.is_none());
        let pooled_width = model.pooled_width();
        Self { slots, in_sum_order, widths, pooled_width, features, any_mean, whole, as_given }
    }
}

impl SlotLayout {
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
fn tiles_by_table<'a>(model: &ModelConfig, plan: &'a ShardingPlan) -> Vec<Vec<(usize, &'a Tile)>> {
    let mut tables = vec![Vec::new(); model.tables.len()];
    let mut counts = vec![0; plan.world_size() as usize];
    for tile in plan.tiles() {
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
