//! Simulates caches of several sizes on one stream of ids, which gives the miss ratio by size. The
//! caches are those of training, so a simulated miss is a miss in training. As in training, rows of
//! the next batch are read before those of the last one are released.

use schema::CachePolicy;

use super::distinct::DistinctRows;
use super::row_cache::{CacheCounts, CacheShape, RowCache, RowMoves};
use super::set::RowAccess;
use crate::cpu::Pool;

/// Caches of several sizes that see the same batches.
#[derive(Clone, Debug)]
pub struct MissCurve {
    caches: Vec<SimulatedCache>,
    distinct: DistinctRows,
    moves: RowMoves,
}

/// A cache, until a batch does not fit into it.
#[derive(Clone, Debug)]
struct SimulatedCache {
    shape: CacheShape,
    cache: Option<RowCache>,
    /// The slots of the last batch.
    in_flight: Vec<u32>,
    /// Counts of the batches before the first one that is counted.
    before: CacheCounts,
}

/// The misses of a cache of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Number of slots of the cache.
    pub rows: usize,
    /// Is `None` if the rows of a batch do not fit into the cache.
    pub counts: Option<CacheCounts>,
    /// Share of distinct rows of a batch that were loaded.
    pub miss_ratio: Option<f64>,
}

impl MissCurve {
    /// Creates empty caches with these numbers of slots. A cache has at least one set.
    #[must_use]
    pub fn new(sizes: &[usize], policy: CachePolicy) -> Self {
        let cache = |&rows: &usize| {
            let shape = CacheShape::with_rows(rows);
            let cache = Some(RowCache::new(shape, policy));
            let (in_flight, before) = (Vec::new(), CacheCounts::default());
            SimulatedCache { shape, cache, in_flight, before }
        };
        let caches = sizes.iter().map(cache).collect();
        Self { caches, distinct: DistinctRows::default(), moves: RowMoves::default() }
    }

    /// Looks up the ids of a batch in all caches.
    pub fn take(&mut self, host: &Pool, ids: &[i64]) {
        let Self { caches, distinct, moves } = self;
        distinct.clear();
        distinct.add(ids);
        distinct.find();
        for SimulatedCache { cache, in_flight, .. } in caches {
            let Some(present) = cache else { continue };
            let mut fetched = present.fetch(host, &distinct.rows, ids.len(), moves);
            present.release(in_flight, RowAccess::Updated);
            in_flight.clear();
            if fetched.is_err() {
                // Two batches do not fit, so this one is read after the one before it.
                fetched = present.fetch(host, &distinct.rows, ids.len(), moves);
            }
            match fetched {
                Ok(()) => in_flight.extend_from_slice(&moves.slots),
                Err(_) => *cache = None,
            }
        }
    }

    /// Leaves the batches so far out of the counts, because they filled empty caches.
    pub fn count_from_here(&mut self) {
        for SimulatedCache { cache, before, .. } in &mut self.caches {
            *before = cache.as_ref().map(RowCache::counts).unwrap_or_default();
        }
    }

    /// Returns the misses of each size, in the order of the sizes.
    #[must_use]
    pub fn points(&self) -> Vec<CurvePoint> {
        let point = |SimulatedCache { shape, cache, before, .. }: &SimulatedCache| {
            let counts = cache.as_ref().map(|cache| cache.counts() - *before);
            let miss_ratio = counts.map(|counts| counts.miss_ratio());
            CurvePoint { rows: shape.slots(), counts, miss_ratio }
        };
        self.caches.iter().map(point).collect()
    }
}
