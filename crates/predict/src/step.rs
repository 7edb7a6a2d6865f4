//! Predicts a step on hardware that is not at hand: time by stage and rank, an interval, and
//! memory, from a configuration, a plan and a topology. Uses no trace.
//!
//! A step runs in the trainer's order: ids to their owners, lookups, pooled vectors back, the dense
//! layers with sums of gradients beside the backward pass, gradients to the owners of the rows, and
//! row updates. Ranks meet at every exchange, so a stage takes as long as on its slowest rank.

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

/// Where a step runs.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    pub topology: &'a Topology,
    /// What prices kernels.
    pub models: &'a Models,
    /// Host time per launch, 0 to ignore it: a step takes no less than all of its launches.
    pub launch_ns: f64,
}

/// The stages of a step, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Ids to the ranks that hold their rows.
    InputDist,
    EmbeddingForward,
    /// Pooled vectors to the ranks of their samples.
    OutputDist,
    /// Dense layers forward and backward, sums of their gradients, and their updates.
    Dense,
    /// Gradients to the ranks that hold the rows.
    GradientDist,
    /// Sorting of ids, sums by row, and row updates.
    EmbeddingBackward,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::InputDist,
        Self::EmbeddingForward,
        Self::OutputDist,
        Self::Dense,
        Self::GradientDist,
        Self::EmbeddingBackward,
    ];

    /// As tables call it.
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

/// A rank's part of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPrice {
    pub rank: u32,
    /// Its own time of each stage, in the order of [`Stage::ALL`].
    pub stages: [Estimate; 6],
    /// For how long it waits for slower ranks, of the mean.
    pub wait_ns: f64,
    pub memory: Memory,
}

/// A priced step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPrice {
    /// Step, memory, and whether it fits.
    pub cost: StepCost,
    /// Time of each stage, that of its slowest rank.
    pub stages: [Estimate; 6],
    pub ranks: Vec<RankPrice>,
    /// Dense operations of the largest share of the batch.
    pub ops: Vec<OpPrice>,
    /// Launches of a rank, at most.
    pub launches: u32,
    /// Samples of a step ÷ its time.
    pub samples_per_s: f64,
    /// What the step's mean rests on.
    pub domain: StepDomain,
}

/// Prices a step.
///
/// # Errors
/// [`Error::Workload`] for what no step can be made of, and more ranks than the topology has.
pub fn price(workload: Workload<'_>, conditions: Conditions<'_>) -> Result<StepPrice, Error> {
    Ok(StepPricer::new(workload, conditions)?.into_price())
}
