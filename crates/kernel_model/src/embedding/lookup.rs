//! Computes the amounts of work of lookups and row updates on a CPU.
//!
//! The amounts are rows from each cache and from memory, bags, ids and sums. Hit rates assume that
//! caches keep rows from step to step.

use super::Popularity;
use crate::tile_use::TileUse;

/// Bytes of an id.
const ID: f64 = 8.0;
/// Bits of a key that one pass of the sort orders.
const SORT_BITS: f64 = 11.0;
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
        ("ids", sum(&|tile| tile.uses)),
        ("elements", sum(&elements)),
        ("bytes_out", sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64)),
        ("bytes_past_private", sharing.uneven() * private.bytes),
        ("bytes_past_last", sharing.uneven() * last.bytes),
        ("rows_past_last", sharing.uneven() * last.rows),
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

/// Computes the amounts of work of the row updates of a step on a CPU. Ids are sorted by row, and
/// their gradients are summed before rows are updated.
#[must_use]
pub fn backward_amounts(tiles: &[&TileUse], cores: Cores) -> Vec<Amount> {
    let sum = |of: &dyn Fn(&TileUse) -> f64| tiles.iter().map(|tile| of(tile)).sum::<f64>();
    let ids = sum(&|tile| tile.uses);
    let gathering = Sharing::new(ids / IDS_OF_CHUNK, cores.threads).uneven();
    let updating = Sharing::new(ids / PAIRS_OF_CHUNK, cores.threads);
    let rows = sum(&TileUse::rows_used);
    let row_bytes = sum(&|tile| tile.rows_used() * row(tile));
    let gradient = sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64);
    // Rows that the lookups left in a cache are not read from memory again.
    let left = |cache: f64| past(row_bytes + gradient, cache);
    vec![
        ("call", 1.0),
        (WAKING, updating.saved()),
        ("tables", tiles.len() as f64),
        ("bags", gathering * sum(&|tile| tile.bags as f64)),
        ("ids", gathering * ids),
        ("sorted", gathering * sum(&|tile| tile.uses * passes(tile.rows as f64))),
        ("ids_summed", updating.uneven() * ids),
        ("elements", updating.uneven() * sum(&|tile| tile.uses * tile.dim as f64)),
        ("rows", updating.uneven() * rows),
        ("row_bytes", updating.uneven() * row_bytes),
        ("row_bytes_past_private", updating.uneven() * row_bytes * left(cores.private)),
        ("rows_past_last", updating.uneven() * rows * left(cores.last)),
    ]
}

fn row(tile: &TileUse) -> f64 {
    (tile.dim * tile.weight_bytes) as f64
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
}

impl CacheMisses {
    /// Computes the misses of rows. All tables share the cache. A row stays for as many steps as it
    /// takes to fill the cache with other rows.
    fn for_rows(tiles: &[&TileUse], cache: f64) -> Self {
        let passing: f64 = tiles.iter().map(|t| 4.0 * (t.bags * t.dim) as f64 + ID * t.uses).sum();
        let held = |steps: f64| -> f64 {
            let rows = |tile: &&TileUse| {
                row(tile) * tile.popularity.rows_used(steps * tile.uses).min(tile.rows as f64)
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
            let rows = tile.uses * rate;
            missed.rows += rows;
            missed.bytes += rows * row(tile);
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
