//! The tiles of each table and of each rank, with the terms of their prices. Tables are placed
//! again one at a time, and only the ranks whose tiles differ are reported.

use std::collections::HashMap;

use kernel_model::embedding::HitCurve;
use kernel_model::rank_load::TileTerms;
use kernel_model::tile_use::TileDescriber;
use schema::{HostLayout, Optimizer, Rank, RowScope, TableId, Tile};

use super::exchange::Moved;
use crate::workload::Workload;

/// Bytes of the terms of a row that ranks exchange where its columns are split.
const TERMS_BYTES: f64 = 8.0;
/// Tiles for which each rank has room in addition to twice the mean, so that moves need no memory.
const SPARE_TILES: usize = 64;

/// Place of the table's number in the order of a tile.
const TABLE_SHIFT: u32 = 31;

/// Where the parts of a table lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableSharding<'a> {
    /// Tiles that cover the table, ordered by first row and first column.
    Tiles(&'a [Tile]),
    /// Every rank holds the whole table.
    Replicated,
}

/// A tile on its rank.
#[derive(Clone, Debug, PartialEq)]
struct PlacedTile {
    tile: Tile,
    /// Position of the tile's terms in the list of all terms.
    terms: u32,
    /// Whether the rank's host adds up the partial sums of the tile's columns.
    is_reduced: bool,
    /// Bytes of the terms of rows that the tile shares with others.
    row_terms: Moved,
}

/// The tiles of one table, in plan order. A replicated table has one tile for each rank.
#[derive(Clone, Debug, Default)]
struct TableTiles {
    tiles: Vec<PlacedTile>,
    is_replicated: bool,
}

/// A tile in the list of its rank.
#[derive(Clone, Copy, Debug)]
struct HeldTile {
    /// Position in the order of a plan, in which replicated tables follow all others.
    order: u64,
    terms: u32,
    is_reduced: bool,
    row_terms: Moved,
}

/// Sums over the tiles of a rank that depend on the ranks of other tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileSums {
    /// Columns whose partial sums the rank's host adds up.
    pub reduced_width: f64,
    /// Bytes of row terms that the rank exchanges, because columns of its rows lie on other ranks.
    pub row_terms: Moved,
}

/// The tiles of each table and of each rank.
#[derive(Clone, Debug)]
pub struct PlacedTiles<'a> {
    workload: Workload<'a>,
    describer: TileDescriber<'a>,
    rule: Optimizer,
    /// Whether ranks exchange terms of rows whose columns are split.
    exchanges_terms: bool,
    /// The hosts of the ranks, if hosts can add up partial sums.
    hosts: Option<HostLayout>,
    ranks_per_host: usize,
    terms: Vec<TileTerms>,
    /// Shape of the tile that was described last, and position of its terms. Most tiles of a table
    /// have one shape.
    last_terms: Option<(TileShape, u32)>,
    /// Position of the terms of each shape of a tile, and the hit curve of each number of rows.
    known_terms: HashMap<TileShape, u32>,
    known_curves: HashMap<LookedUpRows, HitCurve>,
    tables: Vec<TableTiles>,
    ranks: Vec<Vec<HeldTile>>,
    /// The table that was placed last, and its tiles before that.
    last: Option<TableId>,
    before: TableTiles,
}

/// What the terms of a tile depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TileShape {
    table: TableId,
    rows: u64,
    columns: usize,
    /// Number of samples of the rank that holds the replicated table, or `None` for a tile.
    own_samples: Option<usize>,
}

/// What the hit curve of a tile depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LookedUpRows {
    popularity: usize,
    rows: u64,
    uses_bits: u64,
}

impl<'a> PlacedTiles<'a> {
    /// Places the tiles of a workload's plan on hosts with so many ranks each.
    pub fn new(workload: Workload<'a>, ranks_per_host: usize) -> Self {
        let (config, plan) = (workload.config, workload.plan);
        let hosts = plan.hosts();
        // Only plans that know their hosts add up partial sums on them.
        let reduces = hosts.host_count() > 1 && hosts.ranks_per_host().is_ok();
        let (ranks, count) = (workload.ranks(), plan.tiles().len());
        let room = 2 * (count / ranks.max(1) + plan.replicas().len()) + SPARE_TILES;
        let mut placed = Self {
            workload,
            describer: TileDescriber::new(&config.model, workload.features),
            rule: config.optimizer.sparse.kind,
            exchanges_terms: RowScope::covers_whole_rows(&config.optimizer),
            hosts: reduces.then(|| hosts.clone()),
            ranks_per_host,
            terms: Vec::new(),
            last_terms: None,
            known_terms: HashMap::new(),
            known_curves: HashMap::new(),
            tables: vec![TableTiles::default(); config.model.tables.len()],
            ranks: (0..ranks).map(|_| Vec::with_capacity(room)).collect(),
            last: None,
            before: TableTiles::default(),
        };
        let mut touched = Vec::new();
        for tiles in plan.tiles().chunk_by(|a, b| a.table == b.table) {
            placed.place(tiles[0].table, TableSharding::Tiles(tiles), &mut touched);
        }
        for tile in plan.replicas() {
            placed.place(tile.table, TableSharding::Replicated, &mut touched);
        }
        placed.last = None;
        // The first move needs no memory either.
        placed.before.tiles.reserve(ranks);
        placed
    }

    /// Replaces the tiles of a table, and adds the ranks whose tiles differ to `touched`.
    ///
    /// # Panics
    /// Panics if the tiles do not cover the table, or if a rank does not exist.
    pub fn place(&mut self, table: TableId, sharding: TableSharding<'_>, touched: &mut Vec<u32>) {
        let mut next = std::mem::take(&mut self.before);
        self.fill(&mut next, table, sharding);
        self.replace(table, next, touched);
    }

    /// Replaces the tiles of several tables, and makes the list of each rank anew. No change is
    /// left to undo.
    ///
    /// # Panics
    /// Panics if the tiles do not cover a table, or if a rank does not exist.
    pub fn place_several(&mut self, shardings: &[(TableId, TableSharding<'_>)]) {
        for (table, sharding) in shardings {
            let mut tiles = std::mem::take(&mut self.tables[table.index()]);
            self.fill(&mut tiles, *table, *sharding);
            self.relate(&mut tiles);
            self.tables[table.index()] = tiles;
        }
        self.last = None;
        self.ranks.iter_mut().for_each(Vec::clear);
        for is_replicated in [false, true] {
            for (id, table) in (0..).map(TableId).zip(&self.tables) {
                for (part, placed) in table.tiles.iter().enumerate() {
                    if table.is_replicated == is_replicated {
                        let held = HeldTile::new(placed, order(id, part, is_replicated));
                        self.ranks[placed.tile.rank.index()].push(held);
                    }
                }
            }
        }
    }

    /// Fills `next` with the tiles of a table.
    fn fill(&mut self, next: &mut TableTiles, table: TableId, sharding: TableSharding<'_>) {
        next.tiles.clear();
        next.is_replicated = sharding == TableSharding::Replicated;
        let config = &self.workload.config.model.tables[table.index()];
        match sharding {
            TableSharding::Tiles(tiles) => {
                let weights = |tile: &Tile| tile.row_count() as u128 * tile.dim() as u128;
                let held: u128 = tiles.iter().map(weights).sum();
                assert_eq!(held, u128::from(config.rows) * config.dim as u128, "weights in tiles");
                for tile in tiles {
                    let terms = self.terms_of(tile, None);
                    next.tiles.push(PlacedTile::new(tile.clone(), terms));
                }
            }
            TableSharding::Replicated => {
                let (rows, columns) = (0..config.rows, 0..config.dim);
                for rank in 0..self.ranks.len() {
                    let (rows, columns) = (rows.clone(), columns.clone());
                    let tile = Tile { table, rows, columns, rank: Rank(rank as u32) };
                    let terms = self.terms_of(&tile, Some(self.workload.samples(rank)));
                    next.tiles.push(PlacedTile::new(tile, terms));
                }
            }
        }
    }

    /// Moves a tile, given by its position among the tiles of its table, to another rank. Adds the
    /// ranks whose tiles differ to `touched`.
    ///
    /// # Panics
    /// Panics if the tile or the rank does not exist, or if the table is replicated.
    pub fn move_tile(&mut self, table: TableId, part: usize, to: Rank, touched: &mut Vec<u32>) {
        let mut next = std::mem::take(&mut self.before);
        let current = &self.tables[table.index()];
        assert!(!current.is_replicated, "every rank holds table {}", table.0);
        next.tiles.clone_from(&current.tiles);
        next.is_replicated = false;
        next.tiles[part].tile.rank = to;
        self.replace(table, next, touched);
    }

    /// Restores the tiles before the last change, and adds the ranks whose tiles differ to
    /// `touched`. A second call in a row has no effect.
    pub fn undo(&mut self, touched: &mut Vec<u32>) {
        if let Some(table) = self.last.take() {
            std::mem::swap(&mut self.tables[table.index()], &mut self.before);
            self.exchange_held(table, touched);
        }
    }

    /// Returns the terms of a rank's tiles in plan order, then those of replicated tables.
    pub fn terms_on(&self, rank: usize) -> impl Iterator<Item = &TileTerms> + Clone {
        self.ranks[rank].iter().map(|held| &self.terms[held.terms as usize])
    }

    /// Returns the tables of a rank's tiles in plan order, one entry per tile, then the replicated
    /// tables.
    pub fn tables_on(&self, rank: usize) -> impl ExactSizeIterator<Item = TableId> {
        self.ranks[rank].iter().map(|held| TableId((held.order >> TABLE_SHIFT) as u32))
    }

    /// Returns the sums over a rank's tiles that depend on the ranks of other tiles.
    pub fn sums(&self, rank: usize) -> TileSums {
        let mut sums = TileSums::default();
        for held in &self.ranks[rank] {
            if held.is_reduced {
                sums.reduced_width += self.terms[held.terms as usize].width();
            }
            sums.row_terms.within += held.row_terms.within;
            sums.row_terms.between += held.row_terms.between;
        }
        sums
    }

    fn replace(&mut self, table: TableId, mut next: TableTiles, touched: &mut Vec<u32>) {
        self.relate(&mut next);
        self.before = std::mem::replace(&mut self.tables[table.index()], next);
        self.last = Some(table);
        self.exchange_held(table, touched);
    }

    /// Fills in what a tile's price depends on in the other tiles of its table.
    fn relate(&self, table: &mut TableTiles) {
        let tiles = &mut table.tiles;
        for at in 0..tiles.len() {
            let others = tiles.iter().map(|placed| &placed.tile);
            let reduces = |hosts: &HostLayout| hosts.reduces(&tiles[at].tile, others);
            tiles[at].is_reduced = !table.is_replicated && self.hosts.as_ref().is_some_and(reduces);
            tiles[at].row_terms = Moved::default();
        }
        if table.is_replicated || !self.exchanges_terms {
            return;
        }
        let host = |tile: &Tile| tile.rank.index() / self.ranks_per_host;
        for first in 0..tiles.len() {
            for second in first + 1..tiles.len() {
                let (a, b) = (&tiles[first].tile, &tiles[second].tile);
                // Tiles are ordered by first row, so no later tile shares rows.
                if b.rows.start >= a.rows.end {
                    break;
                }
                if a.rank == b.rank {
                    continue;
                }
                let is_here = host(a) == host(b);
                let shared = (b.rows.end.min(a.rows.end) - b.rows.start) as f64;
                for at in [first, second] {
                    let share = shared / tiles[at].tile.row_count() as f64;
                    let rows_used = self.terms[tiles[at].terms as usize].rows_used();
                    let moved = &mut tiles[at].row_terms;
                    let link = if is_here { &mut moved.within } else { &mut moved.between };
                    *link += TERMS_BYTES * share * rows_used;
                }
            }
        }
    }

    /// Takes the previous tiles of a table out of the lists of their ranks, and puts its current
    /// tiles in. Tiles that are equal before and after stay where they are.
    fn exchange_held(&mut self, table: TableId, touched: &mut Vec<u32>) {
        let (before, after) = (&self.before, &self.tables[table.index()]);
        let is_comparable = before.is_replicated == after.is_replicated;
        let stays = |at: usize| {
            is_comparable
                && before.tiles.get(at).is_some()
                && before.tiles.get(at) == after.tiles.get(at)
        };
        for (at, placed) in before.tiles.iter().enumerate().filter(|(at, _)| !stays(*at)) {
            let held = &mut self.ranks[placed.tile.rank.index()];
            let order = order(table, at, before.is_replicated);
            let place = held.partition_point(|other| other.order < order);
            held.remove(place);
            touched.push(placed.tile.rank.0);
        }
        for (at, placed) in after.tiles.iter().enumerate().filter(|(at, _)| !stays(*at)) {
            let held = &mut self.ranks[placed.tile.rank.index()];
            let order = order(table, at, after.is_replicated);
            let place = held.partition_point(|other| other.order < order);
            held.insert(place, HeldTile::new(placed, order));
            touched.push(placed.tile.rank.0);
        }
    }

    /// Returns the position of a tile's terms. Each shape of a tile is described once.
    fn terms_of(&mut self, tile: &Tile, own_samples: Option<usize>) -> u32 {
        let (rows, columns) = (tile.row_count() as u64, tile.dim());
        let shape = TileShape { table: tile.table, rows, columns, own_samples };
        if let Some((_, known)) = self.last_terms.filter(|(last, _)| *last == shape) {
            return known;
        }
        let known = self.known_terms.get(&shape).copied();
        let position = known.unwrap_or_else(|| self.describe(tile, shape));
        self.last_terms = Some((shape, position));
        position
    }

    /// Computes the terms of a tile with a new shape, and returns their position.
    fn describe(&mut self, tile: &Tile, shape: TileShape) -> u32 {
        let TileShape { rows, own_samples, .. } = shape;
        let batch = self.workload.config.training.batch_size;
        let tile_use = match own_samples {
            None => self.describer.describe(tile, batch),
            Some(own) => self.describer.describe_replica(tile, own, batch),
        };
        let popularity = self.describer.popularity_of(tile.table);
        let looked_up = LookedUpRows { popularity, rows, uses_bits: tile_use.uses.to_bits() };
        let terms =
            TileTerms::new(&tile_use, self.rule, self.known_curves.get(&looked_up).copied());
        self.known_curves.insert(looked_up, terms.curve());
        let position = self.terms.len() as u32;
        self.terms.push(terms);
        self.known_terms.insert(shape, position);
        position
    }
}

impl PlacedTile {
    fn new(tile: Tile, terms: u32) -> Self {
        Self { tile, terms, is_reduced: false, row_terms: Moved::default() }
    }
}

impl HeldTile {
    fn new(placed: &PlacedTile, order: u64) -> Self {
        let PlacedTile { terms, is_reduced, row_terms, .. } = *placed;
        Self { order, terms, is_reduced, row_terms }
    }
}

/// Returns the place of a tile in the order of a plan, in which replicated tables come last.
fn order(table: TableId, part: usize, is_replicated: bool) -> u64 {
    u64::from(is_replicated) << 63 | u64::from(table.0) << TABLE_SHIFT | part as u64
}
