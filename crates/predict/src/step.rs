//! Predicts a step on hardware that was not recorded. The prediction has a time for each stage and
//! rank, an interval and the memory, and needs a configuration, a plan and a topology.
//!
//! A step runs in the order of the trainer's stage graph. Ids move to the ranks that hold their
//! rows, the rows are looked up, and the pooled vectors move back. Then the dense layers run.
//! Gradients move to the ranks of their rows, which update them. Exchanges run beside other stages
//! where the schedule allows it. Ranks wait for each other at the end of an exchange alone.

pub mod cpu;
mod dense;
mod domain;
mod exchange;
pub mod execution_trace_time;
pub mod host;
mod memory;
mod placed_tiles;
mod pricer;
mod rank_exchange;
mod sweep;
mod timeline;

use kernel_model::Estimate;
use kernel_model::host_costs::HostCosts;
use schema::topology::ProductFormat;
use schema::{Schedule, Topology};
use serde::Serialize;

use crate::Error;
use crate::workload::Workload;

pub use dense::{Basis, BottomMlp, DenseKernels, Models, OpPrice};
pub use domain::StepDomain;
pub use kernel_model::exchanges::RankExchange;
pub use memory::{Memory, largest_batch};
pub use placed_tiles::TableSharding;
pub use pricer::{StepCost, StepPricer};
pub use rank_exchange::price_exchange;
pub use sweep::{SweepRow, mark_best};
pub use timeline::TimedAction;

/// The hardware and the kernel models from which a step is priced.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    pub topology: &'a Topology,
    pub models: &'a Models,
    /// Host time per launch in nanoseconds. A step takes at least the sum over its launches. Use 0
    /// to ignore the host.
    pub launch_ns: f64,
    /// Format of the products, of activations, and of pooled vectors in messages. Tables, pooled
    /// vectors where they are looked up, optimizer states and dense weights are f32.
    pub format: ProductFormat,
    /// Exchanges that run beside other stages.
    pub schedule: Schedule,
    pub kernels: DenseKernels,
    pub bottom_mlp: BottomMlp,
    pub row_updates: RowUpdates,
    /// Costs of a CPU on which rowmill trains. They replace the kernels of a GPU and the links
    /// within a host.
    pub host: Option<&'a HostCosts>,
}

/// The kernels of a row update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowUpdates {
    /// Ids are sorted, and one kernel sums the gradients of a row and updates it, as in FBGEMM.
    #[default]
    Fused,
    /// A kernel multiplies gradients by the learning rate before others add them to rows, as
    /// TensorFlow does.
    Scatter,
}

impl<'a> Conditions<'a> {
    /// Creates the conditions of a step as PyTorch runs it in f32, under the trainer's default
    /// schedule, without a host.
    #[must_use]
    pub fn new(topology: &'a Topology, models: &'a Models) -> Self {
        Self {
            topology,
            models,
            launch_ns: 0.0,
            format: ProductFormat::F32,
            schedule: Schedule::PIPELINED,
            kernels: DenseKernels::Eager,
            bottom_mlp: BottomMlp::DataParallel,
            row_updates: RowUpdates::Fused,
            host: None,
        }
    }
}

/// Number of [`Stage`]s.
pub const STAGES: usize = 7;

/// The stages of a predicted step, in order. Ranks synchronize at each exchange between two stages.
/// They have the names of the trainer's stages; those of the dense layers are one stage here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Ids move to the ranks that hold their rows.
    InputDistribution,
    Lookup,
    /// Pooled vectors move to the ranks of their samples.
    PooledExchange,
    /// Dense layers run forward and backward, and dense parameters are updated.
    Dense,
    /// Gradients of dense parameters are summed over ranks.
    AllReduce,
    /// Gradients of pooled vectors move to the ranks that hold the rows.
    GradientExchange,
    /// Ids are sorted, gradients are summed by row, and rows are updated.
    EmbeddingUpdate,
}

impl Stage {
    /// All stages in the order in which they run.
    pub const ALL: [Self; STAGES] = [
        Self::InputDistribution,
        Self::Lookup,
        Self::PooledExchange,
        Self::Dense,
        Self::AllReduce,
        Self::GradientExchange,
        Self::EmbeddingUpdate,
    ];

    /// The stages in which ranks exchange ids, vectors or gradients.
    pub const EXCHANGES: [Self; 4] =
        [Self::InputDistribution, Self::PooledExchange, Self::AllReduce, Self::GradientExchange];

    /// Returns the stage to which an action of the trainer's stage graph belongs.
    #[must_use]
    pub fn from_action(action: schema::Stage) -> Self {
        use schema::Stage as Action;
        match action {
            Action::InputDistribution => Self::InputDistribution,
            Action::Lookup => Self::Lookup,
            Action::PooledExchange => Self::PooledExchange,
            Action::GradientExchange | Action::GroupExchange | Action::RowTerms => {
                Self::GradientExchange
            }
            Action::AllReduce(_) => Self::AllReduce,
            Action::EmbeddingUpdate => Self::EmbeddingUpdate,
            _ => Self::Dense,
        }
    }

    /// Returns the name of the stage in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        use schema::Stage as Action;
        match self {
            Self::InputDistribution => Action::InputDistribution.name(),
            Self::Lookup => Action::Lookup.name(),
            Self::PooledExchange => Action::PooledExchange.name(),
            Self::Dense => "dense",
            Self::AllReduce => Action::AllReduce(0).name(),
            Self::GradientExchange => Action::GradientExchange.name(),
            Self::EmbeddingUpdate => Action::EmbeddingUpdate.name(),
        }
    }
}

/// One rank's part of a predicted step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPrice {
    pub rank: u32,
    /// Time that each stage adds to the step on this rank, in the order of [`Stage::ALL`].
    pub stages: [Estimate; STAGES],
    /// Mean time for which the rank waits for slower ranks and for the host. All stages and this
    /// time add up to the step.
    pub wait_ns: f64,
    pub memory: Memory,
}

/// The predicted time and memory of a step, by stage and by rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPrice {
    pub cost: StepCost,
    /// Time by which each stage lengthens the step, in the order of [`Stage::ALL`]. An exchange
    /// beside other stages counts only while the step waits for it.
    pub stages: [Estimate; STAGES],
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
