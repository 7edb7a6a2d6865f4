//! Evaluates the formulas of arXiv:2201.07821 for embedding lookups and row updates.

use kernel_model::embedding::{BAG_BYTES, CACHE_SHARE, HitCurve, sectors};
use kernel_model::formula_kernels::{SingleKind, SingleWork};
use schema::HardwareSpec;

/// Whether the published lookup formula takes L2 hits into account.
#[derive(Clone, Copy)]
pub enum Cache {
    Ignored,
    Counted,
}

/// Bytes that a lookup moves for one of its equal tables.
struct TableBytes {
    /// Bytes of indices and results, which are used once and so never hit the cache.
    passing: f64,
    /// Bytes of table pointers, offsets and sizes.
    bags: f64,
    rows: f64,
}

impl TableBytes {
    fn new(work: &SingleWork) -> Self {
        let tile = work.tile();
        let (bags, row_bytes) = (tile.bags as f64, sectors(4.0 * tile.dim as f64));
        let passing = bags * (sectors(4.0 * tile.longest_bag as f64) + row_bytes);
        Self { passing, bags: bags * BAG_BYTES, rows: tile.uses * row_bytes }
    }
}

/// Evaluates the published formula for lookups or for row updates, without a cache or with the hit
/// rate of a bag. Tables are looked up one after another. An update reads and writes each row, and
/// without a cache it is bound by memory or by multiply-adds.
pub fn ns(work: &SingleWork, device: &HardwareSpec, cache: Cache) -> f64 {
    let (tables, tile) = (work.sizes()[1] as f64, work.tile());
    let is_update = work.kind() == SingleKind::EmbeddingBackward;
    let bandwidth = device.dram_sustained.unwrap_or(device.dram);
    let TableBytes { passing, bags, rows } = TableBytes::new(work);
    let rows = if is_update { 2.0 * rows } else { rows };
    match cache {
        Cache::Ignored => {
            let moved = 1e9 * tables * (passing + bags + rows) / bandwidth;
            let products = tables * tile.uses * 4.0 * (tile.dim / 4) as f64;
            let peak = device.sustained_f32.unwrap_or(device.peak.f32);
            if is_update { moved.max(1e9 * products / peak) } else { moved }
        }
        Cache::Counted => {
            let hits = bag_hit_rate(work, device);
            let (dram, l2) = (passing + (1.0 - hits) * rows, bags + hits * rows);
            1e9 * tables * (dram / bandwidth + l2 / device.l2.unwrap_or(3.0 * bandwidth))
        }
    }
}

/// Computes the probability that all rows of a bag are in the cache at the same time.
fn bag_hit_rate(work: &SingleWork, device: &HardwareSpec) -> f64 {
    let tile = work.tile();
    let rows_of_block = (256 / tile.dim).max(1) as f64;
    let blocks = rows_of_block * f64::from(device.multiprocessors);
    // Only tables whose blocks run at the same time compete for the cache.
    let tables_at_once = (blocks / tile.bags as f64).ceil().max(1.0);
    let cached = device.l2_bytes as f64 / (tables_at_once * 4.0 * tile.dim as f64);
    let (rows, cached) = (tile.rows as f64, cached.min(tile.rows as f64));
    // The probability that all L rows of a bag are cached is C(cached, L) ÷ C(rows, L). The product
    // is computed factor by factor to avoid overflow.
    (0..tile.longest_bag)
        .map(|at| ((cached - at as f64) / (rows - at as f64)).clamp(0.0, 1.0))
        .product()
}

/// Computes the bytes that a lookup moves from memory and from the last-level cache. The tables
/// share the cache.
pub fn traffic(work: &SingleWork, device: &HardwareSpec) -> (f64, f64) {
    let (tables, tile) = (work.sizes()[1] as f64, work.tile());
    let cache = CACHE_SHARE * device.l2_bytes as f64 / tables;
    let cached_rows = cache / sectors(4.0 * tile.dim as f64);
    let hits = HitCurve::new(&tile.popularity, tile.uses).at(cached_rows);
    let TableBytes { passing, bags, rows } = TableBytes::new(work);
    (tables * (passing + (1.0 - hits) * rows), tables * (bags + hits * rows))
}
