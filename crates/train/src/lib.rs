//! The trainer: a model with explicit forward and backward passes over sharded embeddings, its
//! runs, its checkpoints and its metrics.
//!
//! The crate does not write to the terminal and does not choose sharding plans. The caller renders
//! events and provides the plan.

pub mod baseline;
pub mod checkpoint;
pub mod context;
pub mod dense;
pub mod embedding;
mod error;
pub mod initial;
pub mod lane;
pub mod layer;
pub mod memory;
pub mod metric;
pub mod model;
pub mod parameter;
pub mod profile;
pub mod regression;
pub mod run;
pub mod scorer;
pub mod share;
pub mod state_dict;
pub mod table_use;
pub mod timing;

pub use context::RankContext;
pub use dense::BUCKET_BYTES;
pub use error::Error;
pub use metric::Evaluation;
pub use model::{Model, RunStep};
pub use run::{
    LoggedInterval, RuleChange, RunEvent, RunOutcome, RunRequest, Start, TraceRequest, run,
};
pub use scorer::Scorer;
pub use share::{RankBatch, SampleShare};
pub use table_use::TableUse;
pub use timing::RankTiming;
