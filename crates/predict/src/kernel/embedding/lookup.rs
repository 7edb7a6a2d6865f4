//! The work of lookups and row updates on a CPU: rows from each cache and from memory, bags, ids,
//! sums. Hit rates are those of caches that keep rows from step to step. Knows no time.

use schema::{Granularity, HardwareSpec, Optimizer};

use super::Popularity;
use crate::lower::tile_use::TileUse;

/// Bytes of an id, and of a pair that is sorted.
const ID: f64 = 8.0;
/// Bits of a key that one pass of the sort orders.
const SORT_BITS: f64 = 11.0;
/// Bytes of a cache line.
const LINE: f64 = 64.0;
/// Ids of a bag from which on gradients are copied table by table before they are summed.
const PACKED_IDS: f64 = 4.0;

/// The caches of a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caches {
    /// Bytes of those of single cores, all together.
    pub private: f64,
    /// Bytes of the last one.
    pub last: f64,
}

impl Caches {
    /// Of a device whose last cache is known.
    #[must_use]
    pub fn of(spec: &HardwareSpec, private: u64) -> Self {
        Self { private: private as f64, last: (spec.l2_bytes.max(private)) as f64 }
    }
}

/// A named amount of work.
pub type Amount = (&'static str, f64);

/// What the lookups of a step ask of a CPU.
#[must_use]
pub fn forward(tiles: &[&TileUse], caches: Caches) -> Vec<Amount> {
    let private = Missed::of(tiles, caches.private);
    let last = Missed::of(tiles, caches.last);
    let sum = |of: &dyn Fn(&TileUse) -> f64| tiles.iter().map(|tile| of(tile)).sum::<f64>();
    vec![
        ("call", 1.0),
        ("tables", tiles.len() as f64),
        ("bags", sum(&|tile| tile.bags as f64)),
        ("ids", sum(&|tile| tile.uses)),
        ("elements", sum(&|tile| tile.uses * tile.dim as f64)),
        ("elements_16", sum(&|tile| narrow(tile) * tile.uses * tile.dim as f64)),
        ("lines", sum(&|tile| tile.uses * (row(tile) / LINE).ceil())),
        ("bytes_out", sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64)),
        ("bytes_past_private", private.bytes),
        ("bytes_past_last", last.bytes),
        ("rows_past_last", last.rows),
        ("pages_past_last", last.far),
    ]
}

/// The work of a step's row updates on a CPU.
#[must_use]
pub fn backward(tiles: &[&TileUse], rule: Optimizer, caches: Caches) -> Vec<Amount> {
    let sum = |of: &dyn Fn(&TileUse) -> f64| tiles.iter().map(|tile| of(tile)).sum::<f64>();
    let used = |tile: &TileUse| tile.rows_used();
    let rows = sum(&used);
    let elements = sum(&|tile| used(tile) * tile.dim as f64);
    let row_bytes = sum(&|tile| used(tile) * row(tile));
    let state_bytes = sum(&|tile| 4.0 * used(tile) * rule.state_per_row(tile.dim) as f64);
    let gradient = sum(&|tile| 4.0 * (tile.bags * tile.dim) as f64);
    let read = sum(&|tile| 4.0 * tile.uses * tile.dim as f64);
    // What the lookups left in the last cache, if as much fits.
    let left = |cache: f64| (1.0 - cache / (row_bytes + gradient).max(1.0)).max(0.0);
    let states = Missed::states(tiles, rule, caches.last);
    let missed = |cache: f64| read * (1.0 - cache / gradient.max(1.0)).max(0.0);
    let is = |asked: bool| if asked { 1.0 } else { 0.0 };
    let parts = rule.state_names().len();
    let is_by_element = rule.granularity() == Granularity::Element && parts == 1;
    let is_adam = parts == 2;
    let ids = sum(&|tile| tile.uses);
    let is_packed = tiles.len() > 1 && ids >= PACKED_IDS * sum(&|tile| tile.bags as f64);
    // One thread sums the gradients of a row.
    let again = |tile: &&TileUse| (tile.uses * tile.popularity.hottest() - 1.0).max(0.0);
    vec![
        ("call", 1.0),
        ("tables", tiles.len() as f64),
        ("bags", sum(&|tile| tile.bags as f64)),
        ("ids", ids),
        ("sorted", sum(&|tile| tile.uses * passes(tile))),
        (
            "sorted_past_private",
            sum(&|tile| tile.uses * passes(tile)) * past(2.0 * ID * ids, caches.private),
        ),
        ("elements", read / 4.0),
        ("gradient_past_private", missed(caches.private)),
        ("gradient_past_last", missed(caches.last)),
        ("gradient_packed", is(is_packed) * gradient),
        ("hottest_row", tiles.iter().map(again).sum()),
        ("rows", rows),
        ("row_bytes", row_bytes),
        ("row_bytes_past_private", row_bytes * left(caches.private)),
        (
            "row_bytes_past_last",
            Missed::of(tiles, caches.last).unique_bytes.min(row_bytes) * left(caches.last),
        ),
        ("rows_past_last", rows * left(caches.last)),
        ("state_bytes", state_bytes),
        ("state_bytes_past_last", states.bytes),
        ("state_rows_past_last", states.rows),
        ("elements_rowwise", is(rule == Optimizer::RowwiseAdagrad) * elements),
        ("elements_adagrad", is(is_by_element) * elements),
        ("elements_adam", is(is_adam) * elements),
        ("elements_16", sum(&|tile| narrow(tile) * used(tile) * tile.dim as f64)),
    ]
}

fn row(tile: &TileUse) -> f64 {
    (tile.dim * tile.weight_bytes) as f64
}

/// 1 for tables of 16-bit values.
fn narrow(tile: &TileUse) -> f64 {
    if tile.weight_bytes < 4 { 1.0 } else { 0.0 }
}

/// The share of so many bytes that a cache does not hold.
fn past(bytes: f64, cache: f64) -> f64 {
    (1.0 - cache / bytes.max(1.0)).max(0.0)
}

fn passes(tile: &TileUse) -> f64 {
    ((tile.rows.max(2) as f64).log2() / SORT_BITS).ceil()
}

/// Rows that a step uses and a cache does not hold.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    /// Rows, each use that misses.
    rows: f64,
    /// Their bytes.
    bytes: f64,
    /// Rows, each as often as doublings lie between the cache and its table.
    far: f64,
    /// Bytes of distinct rows.
    unique_bytes: f64,
}

impl Missed {
    fn of(tiles: &[&TileUse], cache: f64) -> Self {
        Self::sized(tiles, cache, row)
    }

    /// Of the states of rows.
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

    /// Of rows of so many bytes. All tables share the cache: a row stays for as many steps as it
    /// takes to bring a cache full of others.
    fn sized(tiles: &[&TileUse], cache: f64, bytes: impl Fn(&TileUse) -> f64) -> Self {
        let passing: f64 = tiles.iter().map(|t| 4.0 * (t.bags * t.dim) as f64 + ID * t.uses).sum();
        let held = |steps: f64| -> f64 {
            let rows = |tile: &&TileUse| {
                bytes(tile) * tile.popularity.rows_used(steps * tile.uses).min(tile.rows as f64)
            };
            steps * passing + tiles.iter().map(rows).sum::<f64>()
        };
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
            missed.bytes += rows * of_row;
            missed.far += rows * (all / cache.max(1.0)).max(1.0).log2();
            missed.unique_bytes += rows.min(tile.rows_used()) * of_row;
        }
        missed
    }
}

impl Popularity {
    /// The share of lookups whose row was looked up within so many lookups before.
    #[must_use]
    pub fn reuse_within(&self, lookups: f64) -> f64 {
        let reused = |(rows, share): &(f64, f64)| rows * share * -(-share * lookups).exp_m1();
        self.classes().iter().map(reused).sum::<f64>().clamp(0.0, 1.0)
    }
}
