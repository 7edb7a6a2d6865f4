//! A software-managed cache of the rows of tables that are larger than memory. It decides which
//! rows are in memory and in which slots. The trainer copies their values between memory and
//! storage, and the simulator replays streams of ids without values.

mod curve;
mod distinct;
mod row_cache;
mod scratch;
mod set;

pub use curve::{CurvePoint, MissCurve};
pub use distinct::DistinctRows;
pub use row_cache::{CacheCounts, CacheFull, CacheShape, RowCache, RowMoves, RowSlot};
pub use set::{RowAccess, WAYS};
