//! Computes the amounts of work of lookups and row updates on a CPU.
//!
//! The amounts are rows from each cache and from memory, bags, ids and sums. Hit rates assume that
//! caches keep rows from step to step.

use schema::{Granularity, Optimizer};

use super::Popularity;
use crate::tile_use::TileUse;

/// Bytes of an id, and of a sorted pair of row and position.
const ID: f64 = 8.0;
/// Bits of a key that one pass of the sort orders.
const SORT_BITS: f64 = 11.0;
/// Bytes of a cache line.
const LINE: f64 = 64.0;
/// Minimum ids per bag for which gradients are copied table by table before they are summed.
const PACKED_IDS: f64 = 4.0;

/// Name of the amount that stands for waking other threads. The amount is the time that the other
/// threads save, as a multiple of the call's time with their help. The caller works alone until
/// they are awake.
pub const WAKING: &str = "waking";

/// The cores that share the work of a call, and the sizes of their caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    pub threads: usize,
    /// Total bytes of the private caches.
    pub private: f64,
    /// Bytes of the last-level cache.
    pub last: f64,
}

/// A named amount of work.
pub type Amount = (&'static str, f64);

/// Bags in a chunk of `device::ops::embedding_forward`. A thread claims one chunk at a time.
const BAGS_OF_CHUNK: f64 = 128.0;
/// Ids in a chunk of `device::ops::embedding_backward` while it numbers and sorts them.
const IDS_OF_CHUNK: f64 = 8192.0;
/// Sorted ids in a chunk while `device::ops::embedding_backward` updates rows.
const PAIRS_OF_CHUNK: f64 = 512.0;
/// Batches with at most this many ids use a comparison sort instead of a radix sort.
const PAIRS_COMPARED: f64 = 512.0;
/// Number of elements in a vector register.
const LANES: usize = 16;
/// Columns that one pass over a bag sums, the widest first. Each remaining vector needs a separate
/// pass.
const LANES_OF_PASS: [usize; 3] = [8 * LANES, 4 * LANES, 2 * LANES];

/// Distribution of the chunks of a call over threads.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// Number of chunks of the busiest thread.
    most: f64,
    chunks: f64,
    threads: f64,
}

impl Sharing {
    fn new(chunks: f64, threads: usize) -> Self {
        let (chunks, threads) = (chunks.ceil().max(1.0), threads.max(1) as f64);
        Self { most: (chunks / threads).ceil(), chunks, threads }
    }

    /// Returns the load imbalance: the time of the busiest thread as a multiple of the mean time.
    fn uneven(self) -> f64 {
        self.most * self.threads / self.chunks
    }

    /// Returns the time that parallelism saves, as a multiple of the busiest thread's time.
    fn saved(self) -> f64 {
        self.chunks / self.most - 1.0
    }
}

/// Computes the amounts of work of the lookups of a step on a CPU.
#[must_use]
pub fn forward_amounts(tiles: &[&TileUse], cores: Cores) -> Vec<Amount> {
    let private = CacheMisses::for_rows(tiles, cores.private);
    let quarter = CacheMisses::for_rows(tiles, cores.last / 4.0);
    let last = CacheMisses::for_rows(tiles, cores.last);
    // Amounts are scaled by the load imbalance, because the busiest thread decides when the call
    // ends.
    let sharing = Sharing::new(lookup_chunks(tiles), cores.threads);
    let sum = |of: &dyn Fn(&TileUse) -> f64| {
        sharing.uneven() * tiles.iter().map(|tile| of(tile)).sum::<f64>()
    };
    let bags = |tile: &TileUse| tile.bags as f64;
    let elements = |tile: &TileUse| tile.uses * tile.dim as f64;
    vec![
        ("call", 1.0),
        (WAKING, sharing.saved()),
        ("tables", sum(&|_| 1.0)),
        ("bags", sum(&bags)),
        ("bag_passes", sum(&|tile| bags(tile) * passes_over_bag(tile))),
        ("bags_masked", sum(&|tile| bags(tile) * masked(tile))),
        ("ids", sum(&|tile| tile.uses)),
        ("id_passes", sum(&|tile| tile.uses * passes_over_bag(tile))),
        ("ids_masked", sum(&|tile| tile.uses * masked(tile))),
        ("ids_masked_16", sum(&|tile| tile.uses * masked(tile) * narrow(tile))),
        ("elements", sum(&elements)),
        ("elements_16", sum(&|tile| elements(tile) * narrow(tile))),
        ("lines", sum(&|tile| tile.uses * (row(tile) / LINE).ceil())),
        ("bytes_out", sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64)),
        ("bytes_past_private", sharing.uneven() * private.bytes),
        ("bytes_past_quarter", sharing.uneven() * quarter.bytes),
        ("bytes_past_last", sharing.uneven() * last.bytes),
        ("rows_past_last", sharing.uneven() * last.rows),
        ("rows_masked_past_last", sharing.uneven() * last.masked),
        ("pages_past_last", sharing.uneven() * last.far),
    ]
}

/// Counts the chunks of a lookup. A chunk is a block of samples of one table, or of several tables
/// if the batch is smaller than a block.
fn lookup_chunks(tiles: &[&TileUse]) -> f64 {
    let slots = tiles.iter().map(|tile| tile.vectors.max(1) as f64).sum::<f64>();
    let samples = |tile: &&TileUse| tile.bags as f64 / tile.vectors.max(1) as f64;
    let samples = tiles.iter().map(samples).fold(1.0, f64::max);
    let slots_of_chunk = (BAGS_OF_CHUNK / samples).floor().max(1.0);
    (slots / slots_of_chunk).ceil() * (samples / BAGS_OF_CHUNK).ceil()
}

/// Computes the amounts of work of the row updates of a step on a CPU.
#[must_use]
pub fn backward_amounts(tiles: &[&TileUse], rule: Optimizer, cores: Cores) -> Vec<Amount> {
    let sum = |of: &dyn Fn(&TileUse) -> f64| tiles.iter().map(|tile| of(tile)).sum::<f64>();
    let ids = sum(&|tile| tile.uses);
    let bags = sum(&|tile| tile.bags as f64);
    let gathering = Sharing::new(ids / IDS_OF_CHUNK, cores.threads).uneven();
    let updating = Sharing::new(ids / PAIRS_OF_CHUNK, cores.threads);
    let gradient = sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64);
    let is_packed = tiles.len() > 1 && ids >= PACKED_IDS * bags;
    let mut amounts = vec![
        ("call", 1.0),
        (WAKING, updating.saved()),
        ("tables", tiles.len() as f64),
        ("bags", gathering * bags),
        ("ids", gathering * ids),
        ("gradient_packed", if is_packed { gradient } else { 0.0 }),
    ];
    amounts.extend(sorting(tiles, ids, cores));
    let updates = updates(tiles, rule, cores);
    amounts.extend(updates.into_iter().map(|(name, amount)| (name, updating.uneven() * amount)));
    amounts
}

/// Computes the amounts of work of sorting a batch's ids by row. Either one thread sorts each
/// table, or all threads sort all tables together.
fn sorting(tiles: &[&TileUse], ids: f64, cores: Cores) -> Vec<Amount> {
    let longest = tiles.iter().map(|tile| tile.uses).fold(0.0, f64::max);
    let is_compared = ids <= PAIRS_COMPARED;
    // Sorting each table on one thread pays only if no table has more than one thread's share of
    // ids.
    let by_table = !is_compared && longest * cores.threads as f64 <= ids;
    let (of_tables, of_all) = if by_table { (1.0, 0.0) } else { (0.0, 1.0) };
    let all_rows = tiles.iter().map(|tile| tile.rows as f64).sum::<f64>();
    let sharing = if by_table {
        Sharing::new(tiles.len() as f64, cores.threads)
    } else {
        Sharing::new(ids / IDS_OF_CHUNK, cores.threads)
    };
    let moved =
        |tile: &&TileUse| tile.uses * passes(if by_table { tile.rows as f64 } else { all_rows });
    let moved = sharing.uneven() * tiles.iter().map(moved).sum::<f64>();
    let counted = if is_compared { 0.0 } else { moved };
    // Each pass of a radix sort clears its counters, once for every table that a thread sorts
    // alone.
    let cleared = |tile: &&TileUse| passes(tile.rows as f64);
    let cleared = of_tables * sharing.uneven() * tiles.iter().map(cleared).sum::<f64>();
    vec![
        ("compared", if is_compared { ids * ids.max(2.0).log2() } else { 0.0 }),
        ("sorted_by_table", of_tables * counted),
        ("sorted", of_all * counted),
        ("sorted_past_private", counted * past(2.0 * ID * ids, cores.private)),
        ("counts_cleared", cleared),
    ]
}

/// Computes the amounts of work of summing gradients by row and updating the rows.
fn updates(tiles: &[&TileUse], rule: Optimizer, cores: Cores) -> Vec<Amount> {
    let sum = |of: &dyn Fn(&TileUse) -> f64| tiles.iter().map(|tile| of(tile)).sum::<f64>();
    let used = |tile: &TileUse| tile.rows_used();
    let rows = sum(&used);
    let elements = sum(&|tile| used(tile) * tile.dim as f64);
    let row_bytes = sum(&|tile| used(tile) * row(tile));
    let state_bytes = sum(&|tile| 4.0 * used(tile) * rule.state_per_row(tile.dim) as f64);
    let gradient = sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64);
    let read = sum(&|tile| 4.0 * tile.uses * tile.dim as f64);
    // Rows that the lookups left in a cache are not read from memory again.
    let left = |cache: f64| past(row_bytes + gradient, cache);
    let states = CacheMisses::states(tiles, rule, cores.last);
    let missed = |cache: f64| read * past(gradient, cache);
    let is = |asked: bool| if asked { 1.0 } else { 0.0 };
    let parts = rule.state_names().len();
    let is_by_element = rule.granularity() == Granularity::Element && parts == 1;
    let is_adam = parts == 2;
    // One thread sums all gradients of a row, so the most popular row limits parallelism.
    let again = |tile: &&TileUse| (tile.uses * tile.popularity.hottest() - 1.0).max(0.0);
    vec![
        ("ids_summed", sum(&|tile| tile.uses)),
        ("id_passes", sum(&|tile| tile.uses * passes_over_bag(tile))),
        ("elements", read / 4.0),
        ("gradient_past_private", missed(cores.private)),
        ("gradient_past_last", missed(cores.last)),
        ("hottest_row", tiles.iter().map(again).sum()),
        ("rows", rows),
        ("row_passes", sum(&|tile| used(tile) * passes_over_bag(tile))),
        ("rows_masked", sum(&|tile| used(tile) * masked(tile))),
        ("rows_masked_16", sum(&|tile| used(tile) * masked(tile) * narrow(tile))),
        ("row_bytes", row_bytes),
        ("row_bytes_past_private", row_bytes * left(cores.private)),
        ("row_bytes_past_eighth", row_bytes * left(cores.last / 8.0)),
        (
            "row_bytes_past_last",
            CacheMisses::for_rows(tiles, cores.last).unique_bytes.min(row_bytes) * left(cores.last),
        ),
        ("rows_past_last", rows * left(cores.last)),
        ("state_bytes", state_bytes),
        ("state_bytes_past_eighth", CacheMisses::states(tiles, rule, cores.last / 8.0).bytes),
        ("state_bytes_past_last", states.bytes),
        ("state_rows_past_last", states.rows),
        ("elements_rowwise", is(rule == Optimizer::RowwiseAdagrad) * elements),
        ("elements_adagrad", is(is_by_element) * elements),
        ("elements_adam", is(is_adam) * elements),
        ("elements_16", sum(&|tile| narrow(tile) * used(tile) * tile.dim as f64)),
    ]
}

/// Counts the passes over a bag until all columns of its rows are summed.
fn passes_over_bag(tile: &TileUse) -> f64 {
    let mut left = tile.dim;
    let mut passes = left / LANES_OF_PASS[0];
    left %= LANES_OF_PASS[0];
    for lanes in &LANES_OF_PASS[1..] {
        passes += left / lanes;
        left %= lanes;
    }
    (passes + left.div_ceil(LANES)) as f64
}

/// Returns 1 if a row does not fill its last vector, which then needs a mask. Otherwise returns 0.
fn masked(tile: &TileUse) -> f64 {
    if tile.dim.is_multiple_of(LANES) { 0.0 } else { 1.0 }
}

fn row(tile: &TileUse) -> f64 {
    (tile.dim * tile.weight_bytes) as f64
}

/// Returns 1 for tables of 16-bit values, otherwise 0.
fn narrow(tile: &TileUse) -> f64 {
    if tile.weight_bytes < 4 { 1.0 } else { 0.0 }
}

/// Returns the share of `bytes` that a cache does not hold.
fn past(bytes: f64, cache: f64) -> f64 {
    (1.0 - cache / bytes.max(1.0)).max(0.0)
}

/// Counts the passes of a radix sort whose keys are below `rows`.
fn passes(rows: f64) -> f64 {
    (rows.max(2.0).log2() / SORT_BITS).ceil()
}

/// Cache misses of one step, for a cache of a given size.
#[derive(Clone, Copy, Debug, Default)]
struct CacheMisses {
    /// Number of lookups that miss this cache.
    rows: f64,
    bytes: f64,
    /// Number of misses of rows whose length is not a multiple of the vector width.
    masked: f64,
    /// Misses weighted by the logarithm of table size over cache size, which approximates TLB
    /// misses.
    far: f64,
    /// Bytes of the distinct rows that miss the cache.
    unique_bytes: f64,
}

impl CacheMisses {
    fn for_rows(tiles: &[&TileUse], cache: f64) -> Self {
        Self::sized(tiles, cache, row)
    }

    /// Computes the misses of optimizer states.
    fn states(tiles: &[&TileUse], rule: Optimizer, cache: f64) -> Self {
        let bytes = |tile: &TileUse| 4.0 * rule.state_per_row(tile.dim) as f64;
        let found = Self::sized(tiles, cache, |tile| row(tile) + bytes(tile));
        let share = |tile: &TileUse| bytes(tile) / (row(tile) + bytes(tile));
        let all = tiles.iter().map(|tile| tile.rows_used() * bytes(tile)).sum::<f64>();
        let both: f64 = tiles.iter().map(|t| t.rows_used() * bytes(t) / share(t).max(1e-9)).sum();
        let part = if both > 0.0 { all / both } else { 0.0 };
        let has_states = if all > 0.0 { 1.0 } else { 0.0 };
        Self {
            bytes: found.unique_bytes * part,
            rows: has_states * found.rows.min(tiles.iter().map(|tile| tile.rows_used()).sum()),
            ..found
        }
    }

    /// Computes the misses of rows of a given size. All tables share the cache. A row stays for as
    /// many steps as it takes to fill the cache with other rows.
    fn sized(tiles: &[&TileUse], cache: f64, bytes: impl Fn(&TileUse) -> f64) -> Self {
        let passing: f64 = tiles.iter().map(|t| 4.0 * (t.bags * t.dim) as f64 + ID * t.uses).sum();
        let held = |steps: f64| -> f64 {
            let rows = |tile: &&TileUse| {
                bytes(tile) * tile.popularity.rows_used(steps * tile.uses).min(tile.rows as f64)
            };
            steps * passing + tiles.iter().map(rows).sum::<f64>()
        };
        // Bisect the logarithm of the number of steps that a row stays, between 1e-6 and 1e6 steps.
        let (mut least, mut most) = (1e-6f64, 1e6f64);
        if held(most) <= cache {
            least = most;
        }
        for _ in 0..40 {
            let middle = (least * most).sqrt();
            if held(middle) < cache { least = middle } else { most = middle }
        }
        let mut missed = Self::default();
        for tile in tiles {
            let rate = 1.0 - tile.popularity.reuse_within(least * tile.uses);
            let (rows, of_row) = (tile.uses * rate, bytes(tile));
            let all = tile.rows as f64 * of_row;
            missed.rows += rows;
            missed.masked += rows * masked(tile);
            missed.bytes += rows * of_row;
            missed.far += rows * (all / cache.max(1.0)).max(1.0).log2();
            missed.unique_bytes += rows.min(tile.rows_used()) * of_row;
        }
        missed
    }
}

impl Popularity {
    /// Returns the share of lookups whose row also occurs among the preceding `lookups` lookups.
    #[must_use]
    pub fn reuse_within(&self, lookups: f64) -> f64 {
        let reused = |(rows, share): &(f64, f64)| rows * share * -(-share * lookups).exp_m1();
        self.classes().iter().map(reused).sum::<f64>().clamp(0.0, 1.0)
    }
}
