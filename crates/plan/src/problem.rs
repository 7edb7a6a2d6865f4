//! The problem that a search solves: a workload, the hardware and the constraints.

use predict::step::Conditions;
use schema::{FeatureStats, HostLayout, JobConfig};

use crate::constraints::Constraints;
use crate::error::Error;

/// The program that is to run a plan, which limits the layouts of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanTarget {
    /// rowmill, which runs every layout.
    #[default]
    Rowmill,
    /// TorchRec too. It splits rows over all ranks or over the ranks of a host, and columns into
    /// equal parts of a multiple of 4.
    Torchrec,
}

/// A workload whose tables are to be placed on all ranks of a topology.
#[derive(Clone, Copy, Debug)]
pub struct PlanProblem<'a> {
    /// The job configuration. Its `training.batch_size` counts the samples of all ranks.
    pub config: &'a JobConfig,
    /// Statistics of each feature, in the model's order.
    pub features: &'a [FeatureStats],
    /// The hardware, the prices of its kernels, and the schedule of the step. A plan uses all ranks
    /// of the topology.
    pub conditions: Conditions<'a>,
    pub constraints: &'a Constraints,
    pub target: PlanTarget,
}

/// Whether constraints limit where tables may lie. A file of statistics does not.
#[must_use]
pub fn limits_plans(constraints: &Constraints) -> bool {
    !Constraints { stats: None, ..constraints.clone() }.is_empty()
}

impl PlanProblem<'_> {
    /// Returns the number of ranks, all of which a plan uses.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.conditions.topology.ranks() as u32
    }

    /// Returns the hosts of the ranks.
    ///
    /// # Errors
    /// [`Error::Hosts`] if the topology has no rank.
    pub fn hosts(&self) -> Result<HostLayout, Error> {
        let topology = self.conditions.topology;
        HostLayout::with_ranks_per_host(self.ranks() as usize, topology.ranks_per_host)
            .map_err(Error::Hosts)
    }

    /// Returns the bytes that a plan may use on each rank.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let bytes = self.conditions.topology.device.memory_bytes;
        bytes.saturating_sub(self.constraints.reserve_bytes)
    }
}
