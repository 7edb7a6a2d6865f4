//! Predicts time and memory of the tiles of one rank: lookups, row updates, weights and optimizer
//! states.
//!
//! Each tile is described once. The load of a rank is the sum over its tiles in plan order, and
//! computing it allocates nothing.

use schema::{HardwareSpec, Optimizer};

use crate::Estimate;
use crate::embedding::{BAG_BYTES, CACHE_SHARE, HitCurve, ROW_NS, START_NS, sectors};
use crate::host_costs::{DistributedIds, HostAmounts, HostCosts};
use crate::tile_use::TileUse;

/// Lowest and highest factor for V100 lookups whose longest bag decides their time.
const MEASURED: (f64, f64) = (0.87, 1.15);
/// Lowest and highest factor for a formula that was not compared with measurements.
const UNMEASURED: (f64, f64) = (0.5, 2.0);
/// Time to linearize, scan and sort a handful of ids. The time was measured for one module of
/// tables in the public 8-rank DLRM trace (V100).
const SORT_START_NS: f64 = 54_000.0;
/// Time of the two kernels that update a handful of rows, from the same trace.
const UPDATE_START_NS: f64 = 17_000.0;
/// Bytes of an id with its position while both are sorted.
const SORTED_BYTES: f64 = 12.0;
/// Bits of a key that one pass of the sort orders.
const SORT_BITS: f64 = 8.0;
/// Number of thread groups that sum the gradients of one row together.
const GROUPS_PER_ROW: f64 = 32.0;

/// Bytes of the number of a row in a message.
const LISTED_ROW: f64 = 8.0;

/// Number of kernel launches of a lookup.
pub const FORWARD_LAUNCHES: u32 = 2;
/// Number of kernel launches of a row update.
pub const BACKWARD_LAUNCHES: u32 = 12;

/// Precomputed terms of a tile that do not depend on the rank that holds it.
#[derive(Clone, Debug)]
pub struct TileTerms {
    /// Number of columns that the tile adds to each sample.
    width: f64,
    dim: f64,
    bags: f64,
    uses: f64,
    longest: f64,
    /// Bytes of a row in whole memory transactions.
    row_bytes: f64,
    /// Bytes of indices and results, which are used once and so never hit the cache.
    passing_bytes: f64,
    /// Bytes of the distinct rows that a batch uses.
    used_bytes: f64,
    curve: HitCurve,
    rows: f64,
    /// Number of ids that are compared with the tile's rows, if it has a part of the table's.
    tested_ids: f64,
    /// Bytes that a row update reads and writes.
    update_bytes: f64,
    gradient_bytes: f64,
    gradient_reads: f64,
    /// Number of lookups of the most popular row.
    hottest: f64,
    /// Number of distinct rows that a batch uses.
    rows_used: f64,
    /// For a replicated table, what its rank does besides lookups. `None` for other tiles.
    replica: Option<ReplicaTerms>,
    weights: u64,
    states: u64,
}

/// What a replicated table adds to the exchange of ids and gradients of its rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReplicaTerms {
    /// Number of distinct rows that the rank's own samples look up.
    own_rows: f64,
    /// Bytes of the message that lists these rows: 8 for each, or a bit for each row of the table.
    list_bytes: f64,
}

impl ReplicaTerms {
    fn new(tile: &TileUse) -> Option<Self> {
        tile.uses_of_all?;
        let own_rows = tile.popularity.rows_used(tile.uses).min(tile.uses);
        let list_bytes = (LISTED_ROW * own_rows).min(tile.rows as f64 / 8.0);
        Some(Self { own_rows, list_bytes })
    }
}

impl TileTerms {
    /// Computes the terms of a tile whose rows are updated by `rule`. `curve` is the hit curve of a
    /// tile with equal rows, popularity and uses, if there is one. A new curve takes 24 evaluations
    /// over all classes of rows.
    pub fn new(tile: &TileUse, rule: Optimizer, curve: Option<HitCurve>) -> Self {
        let (bags, dim, uses) = (tile.bags as f64, tile.dim as f64, tile.uses);
        let row_bytes = sectors(dim * tile.weight_bytes as f64);
        let curve = curve.unwrap_or_else(|| HitCurve::new(&tile.popularity, uses));
        let rows_used = tile.rows_used();
        let state = rule.state_per_row(tile.dim) as f64;
        let row = (tile.dim * tile.weight_bytes) as u64;
        let ids = if bags > 0.0 { uses / bags } else { 0.0 };
        Self {
            width: (tile.vectors * tile.dim) as f64,
            dim,
            bags,
            uses,
            longest: tile.longest_bag as f64,
            row_bytes,
            passing_bytes: bags * (sectors(4.0 * ids) + sectors(4.0 * dim)),
            used_bytes: rows_used * row_bytes,
            curve,
            rows: tile.rows as f64,
            tested_ids: if tile.row_share < 1.0 { uses / tile.row_share } else { 0.0 },
            update_bytes: rows_used * (2.0 * row_bytes + 2.0 * sectors(4.0 * state)),
            gradient_bytes: bags * 4.0 * dim,
            gradient_reads: uses * 4.0 * dim,
            hottest: uses * tile.popularity.hottest(),
            rows_used,
            replica: ReplicaTerms::new(tile),
            weights: tile.rows.saturating_mul(row),
            states: tile.rows.saturating_mul(4 * rule.state_per_row(tile.dim) as u64),
        }
    }

    /// Returns the number of columns that the tile adds to each sample.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Returns the number of distinct rows of the tile that a batch uses.
    #[must_use]
    pub fn rows_used(&self) -> f64 {
        self.rows_used
    }

    /// Returns the hit rate of lookups as a function of the cache.
    #[must_use]
    pub fn curve(&self) -> HitCurve {
        self.curve
    }
}

/// What a rank's lookups and row updates cost.
#[derive(Clone, Copy, Debug)]
pub enum RowRates<'a> {
    /// A GPU, by the rates of its data sheet.
    Gpu(&'a HardwareSpec),
    /// A CPU, by measured costs.
    Host(&'a HostCosts),
}

impl RowRates<'_> {
    fn cache_bytes(self) -> f64 {
        match self {
            Self::Gpu(device) => CACHE_SHARE * device.l2_bytes as f64,
            Self::Host(costs) => costs.cache_bytes,
        }
    }
}

/// Time and memory of the tiles of one rank: lookups, row updates, weights and optimizer states.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankLoad {
    /// Number of columns that the rank's tiles add to each sample, without replicated tables.
    pub width: f64,
    /// Ids and bags that ranks exchange for the rank's tiles.
    pub distributed: DistributedIds,
    /// Number of gradients of replicated tables that are summed over ranks.
    pub replica_values: f64,
    /// Number of rows to which these gradients belong.
    pub replica_rows: f64,
    /// Number of values that lookups in replicated tables write for the rank's own samples.
    pub replica_pooled: f64,
    /// Work of the thread that distributes ids for replicated tables: it copies the rank's own ids,
    /// and lists the rows that any rank looks up.
    pub replica_ids: DistributedIds,
    /// Bytes in which the rank lists its rows of replicated tables for each other rank.
    pub replica_list_bytes: f64,
    /// Number of ids looked up in a batch.
    pub uses: f64,
    /// Number of bags looked up in a batch.
    pub bags: f64,
    pub forward: Estimate,
    /// Time to update rows from gradients. For a replicated table, the gradients are sums over
    /// ranks, one for each row.
    pub backward: Estimate,
    /// Time to sum the gradients of the rank's own samples by row of replicated tables. This is
    /// done before the sums over ranks.
    pub replica_backward: Estimate,
    pub weights: u64,
    /// Bytes of optimizer states.
    pub states: u64,
}

/// Sums over the tiles of a rank, from which lookup and update times are computed.
#[derive(Clone, Copy, Default)]
struct Sums {
    tiles: f64,
    bags: f64,
    uses: f64,
    used: f64,
    dram: f64,
    l2: f64,
    longest: f64,
    /// Gradients of tiles, whose rows are updated at once.
    updated: GradientSums,
    /// Bytes that these updates read and write.
    update: f64,
    /// Gradients of replicated tables, which are summed by row first.
    summed: GradientSums,
    /// Bytes of the sums of the rank's own samples.
    own_sums: f64,
    /// Bytes of the sums over ranks, and bytes that the updates with them read and write.
    all_sums: f64,
    replica_update: f64,
}

/// Gradients that are sorted by row and summed.
#[derive(Clone, Copy, Default)]
struct GradientSums {
    tiles: f64,
    bags: f64,
    uses: f64,
    rows: f64,
    gradients: f64,
    gradient_reads: f64,
    hottest: f64,
}

impl GradientSums {
    fn add(&mut self, tile: &TileTerms) {
        self.tiles += 1.0;
        self.bags += tile.bags;
        self.uses += tile.uses;
        self.rows += tile.rows;
        self.gradients += tile.gradient_bytes;
        self.gradient_reads += tile.gradient_reads;
        self.hottest = self.hottest.max(tile.hottest);
    }
}

impl RankLoad {
    /// Sums the terms of a rank's tiles, in plan order.
    pub fn from_tiles<'a>(
        tiles: impl Iterator<Item = &'a TileTerms> + Clone,
        rates: RowRates<'_>,
    ) -> Self {
        let mut load = Self::default();
        let sums = Sums::new(tiles.clone(), rates.cache_bytes());
        tiles.for_each(|tile| load.add(tile));
        if sums.tiles > 0.0 {
            load.forward = match rates {
                RowRates::Gpu(device) => forward(&sums, device),
                RowRates::Host(costs) => {
                    HostCosts::price_rows(&sums.lookup_amounts(), &costs.lookup)
                }
            };
            load.backward = sums.price_updates(rates);
            load.replica_backward = sums.price_replica_sums(rates);
        }
        load
    }

    fn add(&mut self, tile: &TileTerms) {
        if let Some(replica) = &tile.replica {
            self.replica_values += tile.rows_used * tile.dim;
            self.replica_rows += tile.rows_used;
            self.replica_pooled += tile.bags * tile.dim;
            self.replica_ids.bags += tile.bags;
            self.replica_ids.ids += tile.uses + tile.rows_used;
            self.replica_list_bytes += replica.list_bytes;
        } else {
            self.width += tile.width;
            self.distributed.ids += tile.uses;
            self.distributed.bags += tile.bags;
            self.distributed.tested_ids += tile.tested_ids;
        }
        self.uses += tile.uses;
        self.bags += tile.bags;
        self.weights = self.weights.saturating_add(tile.weights);
        self.states = self.states.saturating_add(tile.states);
    }
}

impl Sums {
    fn new<'a>(tiles: impl Iterator<Item = &'a TileTerms> + Clone, cache_bytes: f64) -> Self {
        let used = tiles.clone().map(|tile| tile.used_bytes).sum();
        let mut sums = Self { used, ..Self::default() };
        for tile in tiles {
            // Tables share the cache in proportion to the bytes of the rows that a batch uses.
            let share = if sums.used > 0.0 { tile.used_bytes / sums.used } else { 0.0 };
            sums.add(tile, tile.curve.at(cache_bytes * share / tile.row_bytes));
        }
        sums
    }

    fn lookup_amounts(&self) -> HostAmounts {
        [self.tiles, self.bags, self.uses, self.dram, self.l2]
    }

    fn update_amounts(&self) -> HostAmounts {
        let GradientSums { tiles, bags, uses, gradients, gradient_reads, .. } = self.updated;
        [tiles, bags, uses, self.update + gradients, gradient_reads]
    }

    /// Predicts the updates of all rows: those of tiles, then those of replicated tables with the
    /// sums over ranks.
    fn price_updates(&self, rates: RowRates<'_>) -> Estimate {
        let mut time = Estimate::default();
        let bytes = self.all_sums + self.replica_update;
        if self.updated.tiles > 0.0 {
            time = match rates {
                RowRates::Gpu(device) => backward(&self.updated, self.update, device),
                RowRates::Host(costs) => {
                    HostCosts::price_rows(&self.update_amounts(), &costs.update)
                }
            };
        }
        if self.summed.tiles > 0.0 {
            // Each row has one gradient, and rows are in order, so nothing is sorted.
            time = time.plus(match rates {
                RowRates::Gpu(device) => {
                    let ns = UPDATE_START_NS + 1e9 * bytes / bandwidths(device).0;
                    Estimate::within(ns, UNMEASURED)
                }
                RowRates::Host(costs) => {
                    let amounts = [self.summed.tiles, 0.0, 0.0, bytes, self.all_sums];
                    HostCosts::price_rows(&amounts, &costs.update)
                }
            });
        }
        time
    }

    /// Predicts the sums by row of the gradients of replicated tables, which change no row.
    fn price_replica_sums(&self, rates: RowRates<'_>) -> Estimate {
        let GradientSums { tiles, bags, uses, gradients, gradient_reads, .. } = self.summed;
        match rates {
            _ if tiles <= 0.0 => Estimate::default(),
            RowRates::Gpu(device) => backward(&self.summed, self.own_sums, device),
            RowRates::Host(costs) => {
                let amounts = [tiles, bags, uses, gradients + self.own_sums, gradient_reads];
                HostCosts::price_rows(&amounts, &costs.update)
            }
        }
    }

    fn add(&mut self, tile: &TileTerms, hits: f64) {
        let rows = tile.uses * tile.row_bytes;
        self.tiles += 1.0;
        self.bags += tile.bags;
        self.uses += tile.uses;
        self.dram += tile.passing_bytes + (1.0 - hits) * rows;
        self.l2 += tile.bags * BAG_BYTES + hits * rows;
        self.longest = self.longest.max(tile.longest);
        match &tile.replica {
            None => {
                self.updated.add(tile);
                self.update += tile.update_bytes;
            }
            Some(replica) => {
                self.summed.add(tile);
                self.own_sums += 4.0 * tile.dim * replica.own_rows;
                self.all_sums += 4.0 * tile.dim * tile.rows_used;
                self.replica_update += tile.update_bytes;
            }
        }
    }
}

/// Returns the amounts of the lookups and of the row updates of tiles on a CPU, whose caches hold
/// `cache_bytes` bytes of rows.
pub fn host_amounts<'a>(
    tiles: impl Iterator<Item = &'a TileTerms> + Clone,
    cache_bytes: f64,
) -> [HostAmounts; 2] {
    let sums = Sums::new(tiles, cache_bytes);
    [sums.lookup_amounts(), sums.update_amounts()]
}

/// Returns the bandwidths of memory and last-level cache in bytes per second.
fn bandwidths(device: &HardwareSpec) -> (f64, f64) {
    let dram = device.dram_sustained.unwrap_or(device.dram);
    // Unmeasured cache bandwidth is assumed to be three times the memory bandwidth.
    (dram, device.l2.unwrap_or(3.0 * dram))
}

fn forward(sums: &Sums, device: &HardwareSpec) -> Estimate {
    let (dram, l2) = bandwidths(device);
    let moved = (1e9 * sums.dram / dram).max(1e9 * sums.l2 / l2);
    let longest = sums.longest * ROW_NS;
    let is_measured = moved <= longest && device.key.starts_with("v100");
    let interval = if is_measured { MEASURED } else { UNMEASURED };
    Estimate::within(START_NS + moved.max(longest), interval)
}

/// Predicts a row update: ids are sorted by row, the gradients of each row are summed, and each row
/// is read and written once. `written` counts the bytes that are read and written for the rows.
fn backward(sums: &GradientSums, written: f64, device: &HardwareSpec) -> Estimate {
    let (dram, l2) = bandwidths(device);
    let passes = (sums.rows.max(2.0).log2() / SORT_BITS).ceil();
    let sort = 1e9 * 2.0 * passes * SORTED_BYTES * sums.uses / dram;
    // The row update reads the gradient of a bag once for each id of the bag. The share of the
    // gradients that fits into the cache is the share of these reads that hit it.
    let cache = CACHE_SHARE * device.l2_bytes as f64;
    let missed = (1.0 - cache / sums.gradients.max(1.0)).max(0.0);
    let reads = (sums.gradient_reads * missed).max(sums.gradients.min(sums.gradient_reads));
    let moved = 1e9 * ((reads + written) / dram).max(sums.gradient_reads / l2);
    let hottest = sums.hottest * ROW_NS / GROUPS_PER_ROW;
    let ns = SORT_START_NS + sort + UPDATE_START_NS + moved.max(hottest);
    Estimate::within(ns, UNMEASURED)
}
