//! Maps pooled columns to tiles and ranks: the sharding plan, unrolled over features.
//!
//! A position of a sequence is a slot like a feature, with bags of at most one id: the lookup then
//! writes each row where the interaction reads it, and zeros where an id is absent.
//!
//! The layout is the same on every rank, so ranks need not announce what they send.

use std::ops::Range;

use schema::{ModelConfig, Pooling, Rank, ShardingPlan, TableConfig, Tile};

/// One feature, or one position of it, looked up in one tile. Tiles over split rows give partial
/// sums of the same columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Feature in the batch's order.
    pub feature: usize,
    /// Position in the sequence of the one id that is looked up, if bags are not pooled.
    pub position: Option<usize>,
    pub rows: Range<i64>,
    /// Whether the tile holds all rows, so that no id has to be filtered.
    pub all_rows: bool,
    /// Whether the tile starts at row 0: its partial sum is written, later ones are added.
    pub first: bool,
    /// D of the tile.
    pub dim: usize,
    /// First column in the pooled output `[B, ΣD]`.
    pub column: usize,
    /// First column in the owner's local output `[B_global, width]`.
    pub local_column: usize,
    /// The rank that owns the tile.
    pub rank: Rank,
    /// Index among the owner's tiles.
    pub tile: usize,
    /// Whether bags are averaged: their sums are scaled by 1/L, known before rows are split.
    pub mean: bool,
}

/// The name and size of a feature's table, for range checks of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureRows {
    /// Name of the table.
    pub table: String,
    /// Rows of the whole table.
    pub rows: u64,
}

/// All slots of a plan, grouped by the rank that owns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotLayout {
    /// `slots[r]`: the slots of rank r, by feature, then first row, then first column of the tile,
    /// then position.
    pub slots: Vec<Vec<Slot>>,
    /// All slots in the order in which partial sums are added: by feature, first row, first column.
    /// The order does not depend on who owns a tile, so neither does the sum.
    pub in_sum_order: Vec<Slot>,
    /// `widths[r]`: Σ D over the slots of rank r.
    pub widths: Vec<usize>,
    /// ΣD over the vectors of all features.
    pub pooled_width: usize,
    /// Table of each feature.
    pub features: Vec<FeatureRows>,
    /// Whether any bag is averaged.
    pub any_mean: bool,
    /// Whether one rank holds every table whole, so that the lookup writes the pooled output
    /// directly.
    pub whole: bool,
    /// Whether the slots equal the features, so that the batch's ids are used as they are.
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
    /// Estimates the mean number of ids per bag of `slot`, assuming ids spread evenly over rows and
    /// `ids_per_bag` ids per bag of each feature.
    #[must_use]
    pub fn ids_per_bag(&self, slot: &Slot, ids_per_bag: &[f64]) -> f64 {
        let ids = ids_per_bag.get(slot.feature).copied().unwrap_or(1.0);
        let ids = if slot.position.is_some() { ids.min(1.0) } else { ids };
        let rows = self.features[slot.feature].rows.max(1);
        ids * (slot.rows.end - slot.rows.start) as f64 / rows as f64
    }
}

/// The tiles of each table in plan order, each with its index among its owner's tiles.
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

/// The slots of all vectors of a bag, derived from the first.
fn unrolled(first: Slot, table: &TableConfig) -> impl Iterator<Item = Slot> {
    let (length, dim) = (table.sequence_length, table.dim);
    (0..table.vectors()).map(move |position| Slot {
        position: length.map(|_| position),
        column: first.column + position * dim,
        local_column: first.local_column + position * first.dim,
        ..first.clone()
    })
}
