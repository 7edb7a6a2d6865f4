//! Estimates how a batch uses each tile of a plan: its bags, ids and distinct rows.
//!
//! The estimates are computed from feature statistics.

use schema::{FeatureStats, ModelConfig, ShardingPlan, TableId, Tile};

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
    /// Share of the table's rows that the tile has.
    pub row_share: f64,
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

/// Describes the use of tiles from the statistics of a model's features.
///
/// All features of a table use the id distribution of its first feature. Row shards get a share of
/// the ids in proportion to their rows, because popular rows are scattered.
#[derive(Clone, Debug)]
pub struct TileDescriber<'a> {
    model: &'a ModelConfig,
    /// Statistics of each feature, in the order of the model.
    features: &'a [FeatureStats],
    /// Position of the first feature of each table.
    first: Vec<usize>,
    /// Position in `popularities` of each table.
    popularity: Vec<usize>,
    popularities: Vec<Popularity>,
}

impl<'a> TileDescriber<'a> {
    /// Computes the popularity of the rows of every table. `features` follow the order of the
    /// model.
    #[must_use]
    pub fn new(model: &'a ModelConfig, features: &'a [FeatureStats]) -> Self {
        let (mut first, mut popularity) = (Vec::new(), Vec::new());
        let (mut popularities, mut sources): (Vec<Popularity>, Vec<(u64, usize)>) =
            Default::default();
        let mut feature = 0;
        for table in &model.tables {
            let rows = table.rows.max(1);
            // Compute the popularity of equal tables only once.
            let recent = sources.len().saturating_sub(8)..sources.len();
            let is_alike = |at: &usize| {
                sources[*at].0 == rows && features[sources[*at].1].ids == features[feature].ids
            };
            let known = recent.rev().find(is_alike);
            popularity.push(known.unwrap_or_else(|| {
                popularities.push(Popularity::from_distribution(&features[feature].ids, rows));
                sources.push((rows, feature));
                popularities.len() - 1
            }));
            first.push(feature);
            feature += table.features.len();
        }
        Self { model, features, first, popularity, popularities }
    }

    /// Returns a number that equal popularities of rows share. Equal tables have equal
    /// numbers if at most seven other ones lie between them.
    #[must_use]
    pub fn popularity_of(&self, table: TableId) -> usize {
        self.popularity[table.index()]
    }

    /// Describes the use of a tile by a batch of `samples`.
    #[must_use]
    pub fn describe(&self, tile: &Tile, samples: usize) -> TileUse {
        let at = tile.table.index();
        let table = &self.model.tables[at];
        let of_table = &self.features[self.first[at]..self.first[at] + table.features.len()];
        let kept = |ids: f64| table.sequence_length.map_or(ids, |length| ids.min(length as f64));
        let ids: f64 = of_table.iter().map(|stats| kept(stats.ids_per_bag)).sum();
        let longest = of_table.iter().map(|stats| stats.longest_bag).max().unwrap_or(0);
        let share = tile.row_count() as f64 / table.rows.max(1) as f64;
        // Each position of a sequence is a bag of at most one id.
        let longest = if table.sequence_length.is_some() { longest.min(1) } else { longest };
        let whole = &self.popularities[self.popularity[at]];
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
            row_share: share,
            uses_of_all: None,
            popularity: if share < 1.0 { whole.part(share) } else { whole.clone() },
        }
    }

    /// Describes the use of a replicated table by the `own` samples of a rank, in a batch of
    /// `samples` over all ranks. `tile` covers the table.
    #[must_use]
    pub fn describe_replica(&self, tile: &Tile, own: usize, samples: usize) -> TileUse {
        let uses_of_all = Some(self.describe(tile, samples).uses);
        TileUse { uses_of_all, ..self.describe(tile, own) }
    }
}

/// Lists the tiles of a plan for a batch of `samples` over all ranks, then those of replicated
/// tables, rank by rank. `features` follow the order of the model.
#[must_use]
pub fn list_tiles(
    model: &ModelConfig,
    plan: &ShardingPlan,
    features: &[FeatureStats],
    samples: usize,
) -> Vec<TileUse> {
    let describer = TileDescriber::new(model, features);
    let mut tiles: Vec<TileUse> =
        plan.tiles().iter().map(|tile| describer.describe(tile, samples)).collect();
    let ranks = plan.world_size() as usize;
    let cut = |rank: usize| samples * rank / ranks.max(1);
    for rank in 0..ranks {
        let own = cut(rank + 1) - cut(rank);
        let replica = |tile| TileUse { rank, ..describer.describe_replica(tile, own, samples) };
        tiles.extend(plan.replicas().iter().map(replica));
    }
    tiles
}
