//! Estimates how a batch uses each tile of a plan: its bags, ids and distinct rows.
//!
//! The estimates are computed from feature statistics.

use schema::{FeatureStats, ModelConfig, ShardingPlan, Tile};

use crate::embedding::Popularity;

/// Expected use of one tile of a sharding plan by a batch of all ranks.
#[derive(Clone, Debug)]
pub struct TileUse {
    /// Position of the tile's table in the model.
    pub table: usize,
    pub rank: usize,
    pub dim: usize,
    pub rows: u64,
    pub weight_bytes: usize,
    /// Number of bags that are looked up in the tile. Each position of a sequence counts as one
    /// bag.
    pub bags: usize,
    pub vectors: usize,
    /// Number of ids in the batch that select one of the tile's rows.
    pub uses: f64,
    /// Number of ids in the longest bag that select the tile's rows.
    pub longest_bag: u64,
    /// For a replicated table, number of ids in the batch of all ranks. `uses` and `bags` count
    /// those of the rank's own samples.
    pub uses_of_all: Option<f64>,
    pub popularity: Popularity,
}

impl TileUse {
    /// Returns the expected number of distinct rows that a batch of all ranks uses, which are the
    /// rows that the rank updates.
    #[must_use]
    pub fn rows_used(&self) -> f64 {
        let uses = self.uses_of_all.unwrap_or(self.uses);
        self.popularity.rows_used(uses).min(uses)
    }
}

/// Lists the tiles of a plan for a batch of `samples` over all ranks, then those of replicated
/// tables, rank by rank. Row shards get a share of the
/// ids in proportion to their rows, because popular rows are scattered.
///
/// `features` follow the order of the model. All features of a table use the id distribution of its
/// first feature.
#[must_use]
pub fn list_tiles(
    model: &ModelConfig,
    plan: &ShardingPlan,
    features: &[FeatureStats],
    samples: usize,
) -> Vec<TileUse> {
    let mut first = Vec::with_capacity(model.tables.len());
    let mut count = 0;
    for table in &model.tables {
        first.push(count);
        count += table.features.len();
    }
    // Compute the popularity of equal tables only once.
    let mut computed: Vec<(u64, usize, Popularity)> = Vec::new();
    let mut popularity = |rows: u64, feature: usize| {
        let is_alike = |one: &&(u64, usize, Popularity)| {
            one.0 == rows && features[one.1].ids == features[feature].ids
        };
        if let Some(equal) = computed.iter().rev().take(8).find(is_alike) {
            return equal.2.clone();
        }
        let made = Popularity::from_distribution(&features[feature].ids, rows);
        computed.push((rows, feature, made.clone()));
        made
    };
    let mut describe = |tile: &Tile, samples: usize| {
        let at = tile.table.index();
        let table = &model.tables[at];
        let of_table = &features[first[at]..first[at] + table.features.len()];
        let kept = |ids: f64| table.sequence_length.map_or(ids, |length| ids.min(length as f64));
        let ids: f64 = of_table.iter().map(|stats| kept(stats.ids_per_bag)).sum();
        let longest = of_table.iter().map(|stats| stats.longest_bag).max().unwrap_or(0);
        let share = tile.row_count() as f64 / table.rows.max(1) as f64;
        // Each position of a sequence is a bag of at most one id.
        let longest = if table.sequence_length.is_some() { longest.min(1) } else { longest };
        let whole = popularity(table.rows.max(1), first[at]);
        TileUse {
            table: at,
            rank: tile.rank.index(),
            dim: tile.dim(),
            rows: tile.row_count() as u64,
            weight_bytes: table.data_type.bytes(),
            bags: samples * table.features.len() * table.vectors(),
            vectors: table.features.len() * table.vectors(),
            uses: ids * samples as f64 * share,
            longest_bag: (longest as f64 * share).ceil() as u64,
            uses_of_all: None,
            popularity: if share < 1.0 { whole.part(share) } else { whole },
        }
    };
    let mut tiles: Vec<TileUse> = plan.tiles().iter().map(|tile| describe(tile, samples)).collect();
    let ranks = plan.world_size() as usize;
    let cut = |rank: usize| samples * rank / ranks.max(1);
    for rank in 0..ranks {
        for tile in plan.replicas() {
            let uses_of_all = Some(describe(tile, samples).uses);
            let own = describe(tile, cut(rank + 1) - cut(rank));
            tiles.push(TileUse { rank, uses_of_all, ..own });
        }
    }
    tiles
}
