//! Describes pooled lookups of embedding rows: cache hits, memory transactions, and the longest
//! bag, whose rows one thread group reads one after another.

mod hit_rate;
pub mod lookup;

pub use hit_rate::{HitCurve, Popularity};

/// Bytes of a memory transaction.
const SECTOR: f64 = 32.0;
/// Bytes of table pointers, offsets and sizes that a kernel reads for each bag.
pub const BAG_BYTES: f64 = 96.0;
/// Share of the L2 cache that holds embedding rows. The rest holds outputs and indices in transit.
pub const CACHE_SHARE: f64 = 0.9;

/// Rounds bytes up to whole memory transactions.
#[must_use]
pub fn sectors(bytes: f64) -> f64 {
    SECTOR * (bytes / SECTOR).ceil()
}

/// Time of an empty lookup. This constant and [`ROW_NS`] are fitted to V100 lookups of the public
/// 8-rank DLRM trace, with batches of 16 and bags of up to 100 rows.
pub const START_NS: f64 = 5_200.0;
/// Latency from one row of a bag to the next, which a thread group cannot overlap.
pub const ROW_NS: f64 = 610.0;
