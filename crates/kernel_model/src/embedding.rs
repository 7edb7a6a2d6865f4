//! Predicts pooled lookups of embedding rows by formulas.
//!
//! The formulas depend on bytes moved, cache hits, and the longest bag, whose rows one thread group
//! reads one after another.

mod hit_rate;
pub mod lookup;

use schema::HardwareSpec;

use super::Error;

pub use hit_rate::{HitCurve, Popularity};

/// Bytes of a memory transaction.
const SECTOR: f64 = 32.0;
/// Bytes of table pointers, offsets and sizes that a kernel reads for each bag.
pub const BAG_BYTES: f64 = 96.0;
/// Share of the L2 cache that holds embedding rows. The rest holds outputs and indices in transit.
pub const CACHE_SHARE: f64 = 0.9;

/// The lookups of one batch in one embedding table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLookup {
    pub batch: u64,
    pub rows: u64,
    pub dim: u64,
    /// Mean number of ids per bag.
    pub pooling: f64,
    /// Number of ids in the longest bag.
    pub longest_bag: u64,
    pub popularity: Popularity,
}

impl TableLookup {
    /// Creates lookups whose bags have equal lengths and whose rows are equally popular.
    ///
    /// # Errors
    /// [`Error::Shape`] if a size is 0 or larger than 2³².
    pub fn uniform(batch: u64, rows: u64, dim: u64, pooling: u64) -> Result<Self, Error> {
        let sizes = [batch, rows, dim, pooling];
        if sizes.iter().any(|size| !(1..=1 << 32).contains(size)) {
            let expected = "batch, rows, dim and pooling from 1 to 2^32".to_owned();
            return Err(Error::Shape { kind: "embedding", sizes: sizes.to_vec(), expected });
        }
        let popularity = Popularity::uniform(rows);
        Ok(Self { batch, rows, dim, pooling: pooling as f64, longest_bag: pooling, popularity })
    }

    /// Returns the number of ids that are looked up.
    #[must_use]
    pub fn uses(&self) -> f64 {
        self.batch as f64 * self.pooling
    }

    /// Returns the bytes of one row, rounded up to whole memory transactions.
    #[must_use]
    pub fn row_bytes(&self) -> f64 {
        sectors(4.0 * self.dim as f64)
    }

    /// Returns the bytes of indices and results, which are used once and so never hit the cache.
    #[must_use]
    pub fn passing_bytes(&self) -> f64 {
        self.batch as f64 * (sectors(4.0 * self.pooling) + self.row_bytes())
    }
}

/// Rounds bytes up to whole memory transactions.
#[must_use]
pub fn sectors(bytes: f64) -> f64 {
    SECTOR * (bytes / SECTOR).ceil()
}

/// Constants of the lookup formula that do not follow from bytes moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Time of an empty lookup.
    pub start_ns: f64,
    /// Latency from one row of a bag to the next, which a thread group cannot overlap.
    pub row_ns: f64,
}

/// Constants fitted to V100 lookups of the public 8-rank DLRM trace, with batches of 16 and bags of
/// up to 100 rows.
pub const V100: Constants = Constants { start_ns: 5_200.0, row_ns: 610.0 };

impl Constants {
    /// Fits the constants by a line through (longest bag, time), with relative errors as weights.
    ///
    /// # Errors
    /// [`Error::TooFew`] unless two lookups have longest bags of different lengths.
    pub fn fit(lookups: &[(u64, f64)]) -> Result<Self, Error> {
        let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(longest, ns) in lookups {
            let (weight, longest) = (1.0 / (ns * ns), longest as f64);
            w += weight;
            x += weight * longest;
            y += weight * ns;
            xx += weight * longest * longest;
            xy += weight * longest * ns;
        }
        let spread = w * xx - x * x;
        // If all bags have the same length, the slope of the line is undefined.
        if spread.is_nan() || spread <= 1e-9 * w * xx {
            return Err(Error::TooFew {
                kind: "embedding",
                expected: 2,
                got: lookups.len().min(1),
            });
        }
        let row_ns = (w * xy - x * y) / spread;
        Ok(Self { start_ns: (y - row_ns * x) / w, row_ns })
    }
}

/// Predicts the time of one lookup kernel for all tables: `start + max(DRAM time, L2 time, longest
/// bag · latency of a row)`.
///
/// Each table gets a share of the cache in proportion to the bytes of its rows that the batch uses.
#[must_use]
pub fn forward_ns(tables: &[TableLookup], device: &HardwareSpec, constants: Constants) -> f64 {
    let (dram, l2) = traffic(tables, device);
    let longest = tables.iter().map(|table| table.longest_bag).max().unwrap_or(0) as f64;
    let bandwidth = device.dram_sustained.unwrap_or(device.dram);
    // Unmeasured cache bandwidth is assumed to be three times the memory bandwidth.
    let l2_bandwidth = device.l2.unwrap_or(3.0 * bandwidth);
    let moved = (1e9 * dram / bandwidth).max(1e9 * l2 / l2_bandwidth);
    constants.start_ns + moved.max(longest * constants.row_ns)
}

/// Computes the bytes that a lookup moves from memory and from the last-level cache.
#[must_use]
pub fn traffic(tables: &[TableLookup], device: &HardwareSpec) -> (f64, f64) {
    let used = |table: &TableLookup| table.popularity.rows_used(table.uses()) * table.row_bytes();
    let all: f64 = tables.iter().map(used).sum();
    let (mut dram, mut l2) = (0.0, 0.0);
    for table in tables {
        let cache = CACHE_SHARE * device.l2_bytes as f64 * used(table) / all;
        let hits = table.popularity.hit_rate(table.uses(), cache / table.row_bytes());
        let rows = table.uses() * table.row_bytes();
        dram += table.passing_bytes() + (1.0 - hits) * rows;
        l2 += table.batch as f64 * BAG_BYTES + hits * rows;
    }
    (dram, l2)
}

/// Evaluates the paper's lookup formula without a cache: every row comes from memory, and tables
/// are looked up one after another.
#[must_use]
pub fn published_ns(tables: &[TableLookup], device: &HardwareSpec) -> f64 {
    plain_ns(tables, device, FORWARD)
}

/// Evaluates the paper's formula for an SGD row update without a cache. Every row is read and
/// written, and the time is bound by memory or by multiply-adds.
#[must_use]
pub fn published_backward_ns(tables: &[TableLookup], device: &HardwareSpec) -> f64 {
    let products = |table: &TableLookup| table.uses() * 4.0 * (table.dim / 4) as f64;
    let peak = device.sustained_f32.unwrap_or(device.peak.f32);
    let computed = 1e9 * tables.iter().map(products).sum::<f64>() / peak;
    plain_ns(tables, device, BACKWARD).max(computed)
}

/// Times that a lookup accesses each row: it reads the row once.
const FORWARD: f64 = 1.0;
/// Times that an update accesses each row: it reads and writes the row.
const BACKWARD: f64 = 2.0;

fn plain_ns(tables: &[TableLookup], device: &HardwareSpec, times: f64) -> f64 {
    let moved_bytes = |table: &TableLookup| {
        let bags = table.batch as f64 * BAG_BYTES;
        table.passing_bytes() + bags + times * table.uses() * table.row_bytes()
    };
    1e9 * tables.iter().map(moved_bytes).sum::<f64>() / device.dram_sustained.unwrap_or(device.dram)
}
