//! Predicts a step on hardware that was not recorded: time by stage and rank, an interval, and
//! memory, from a configuration, a plan and a topology.
//!
//! A step runs in the trainer's order: ids move to the ranks of their rows, lookups, pooled vectors
//! move back, dense layers with gradient reductions beside the backward pass, gradients move to the
//! ranks of their rows, and row updates. Ranks meet at every exchange, so a stage takes as long as
//! on its slowest rank.

pub mod cpu;
mod dense;
mod domain;
mod exchange;
pub mod execution_trace_time;
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

/// The hardware and kernel models that a step is priced with.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    pub topology: &'a Topology,
    pub models: &'a Models,
    /// Host time per launch; a step takes at least the sum over its launches. Use 0 to ignore it.
    pub launch_ns: f64,
}

/// The stages of a step, in order. Ranks meet at each exchange between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Ids move to the ranks that hold their rows.
    InputDist,
    EmbeddingForward,
    /// Pooled vectors move to the ranks of their samples.
    OutputDist,
    /// Dense layers forward and backward, gradient reductions, and updates.
    Dense,
    /// Gradients move to the ranks that hold the rows.
    GradientDist,
    /// Ids are sorted, gradients summed by row, and rows updated.
    EmbeddingBackward,
}

impl Stage {
    /// Every stage, in order.
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

/// One rank's part of a priced step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPrice {
    pub rank: u32,
    /// Time of each stage on this rank, in the order of [`Stage::ALL`].
    pub stages: [Estimate; 6],
    /// Mean time that it waits for slower ranks.
    pub wait_ns: f64,
    pub memory: Memory,
}

/// The predicted time and memory of a step, by stage and by rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPrice {
    pub cost: StepCost,
    /// Time of each stage on its slowest rank.
    pub stages: [Estimate; 6],
    pub ranks: Vec<RankPrice>,
    /// Dense operations of the rank with most samples.
    pub ops: Vec<OpPrice>,
    /// Launches of a rank, at most.
    pub launches: u32,
    pub samples_per_s: f64,
    pub domain: StepDomain,
}

/// Predicts time and memory of a step.
///
/// # Errors
/// [`Error::Workload`] for what no step can be made of, and more ranks than the topology has.
pub fn price(workload: Workload<'_>, conditions: Conditions<'_>) -> Result<StepPrice, Error> {
    Ok(StepPricer::new(workload, conditions)?.into_price())
}
