//! Predicts a step on hardware that was not recorded. The prediction has a time for each stage and
//! rank, an interval and the memory, and needs a configuration, a plan and a topology.
//!
//! A step runs in the trainer's order. Ids move to the ranks that hold their rows, the rows are
//! looked up, and the pooled vectors move back. Then the dense layers run, while gradients are
//! reduced over ranks beside the backward pass. Gradients then move to the ranks of their rows,
//! which update them. Ranks synchronize at every exchange, so a stage takes as long as on its
//! slowest rank.

pub mod cpu;
mod dense;
mod domain;
mod exchange;
pub mod execution_trace_time;
pub mod host;
mod memory;
mod pricer;
mod rank_exchange;
mod sweep;

use kernel_model::Estimate;
use schema::Topology;
use serde::Serialize;

use crate::Error;
use crate::workload::Workload;

pub use dense::{Basis, Models, OpPrice};
pub use domain::StepDomain;
pub use memory::{Memory, largest_batch};
pub use pricer::{StepCost, StepPricer};
pub use rank_exchange::RankExchange;
pub use sweep::{SweepRow, mark_best};

/// The hardware and the kernel models from which a step is priced.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    pub topology: &'a Topology,
    pub models: &'a Models,
    /// Host time per launch in nanoseconds. A step takes at least the sum over its launches. Use 0
    /// to ignore the host.
    pub launch_ns: f64,
}

/// The stages of a step, in order. Ranks synchronize at each exchange between two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Ids move to the ranks that hold their rows.
    InputDist,
    EmbeddingForward,
    /// Pooled vectors move to the ranks of their samples.
    OutputDist,
    /// Dense layers run forward and backward, gradients are reduced, and dense parameters are
    /// updated.
    Dense,
    /// Gradients of pooled vectors move to the ranks that hold the rows.
    GradientDist,
    /// Ids are sorted, gradients are summed by row, and rows are updated.
    EmbeddingBackward,
}

impl Stage {
    /// All stages in the order in which they run.
    pub const ALL: [Self; 6] = [
        Self::InputDist,
        Self::EmbeddingForward,
        Self::OutputDist,
        Self::Dense,
        Self::GradientDist,
        Self::EmbeddingBackward,
    ];

    /// Returns the name of the stage in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InputDist => "input_dist",
            Self::EmbeddingForward => "embedding_forward",
            Self::OutputDist => "output_dist",
            Self::Dense => "dense",
            Self::GradientDist => "gradient_dist",
            Self::EmbeddingBackward => "embedding_backward",
        }
    }
}

/// One rank's part of a predicted step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPrice {
    pub rank: u32,
    /// Time of each stage on this rank, in the order of [`Stage::ALL`].
    pub stages: [Estimate; 6],
    /// Mean time for which the rank waits for slower ranks.
    pub wait_ns: f64,
    pub memory: Memory,
}

/// The predicted time and memory of a step, by stage and by rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPrice {
    pub cost: StepCost,
    /// Time of each stage on its slowest rank, in the order of [`Stage::ALL`].
    pub stages: [Estimate; 6],
    pub ranks: Vec<RankPrice>,
    /// Dense operations of the rank with the most samples.
    pub ops: Vec<OpPrice>,
    /// Number of kernel launches on the rank that launches most.
    pub launches: u32,
    pub samples_per_s: f64,
    pub domain: StepDomain,
}

/// Predicts the time and memory of a step.
///
/// # Errors
/// [`Error::Workload`] for a workload that the trainer cannot run, and for more ranks than the
/// topology has.
pub fn price(workload: Workload<'_>, conditions: Conditions<'_>) -> Result<StepPrice, Error> {
    Ok(StepPricer::new(workload, conditions)?.into_price())
}
