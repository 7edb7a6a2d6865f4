//! The workload of a training step: a configuration, a sharding plan and statistics of the
//! features.

use kernel_model::tile_use::{self, TileUse};
use schema::{FeatureStats, JobConfig, ShardingPlan};

use crate::Error;

/// The workload of a training step. The workload determines all operations of the step and their
/// sizes.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// The job configuration. The configuration's `training.batch_size` counts the samples of all
    /// ranks.
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    /// Statistics of each feature, in the model's order.
    pub features: &'a [FeatureStats],
}

/// The operations in which a single rank updates its dense weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseUpdates {
    /// Updates are fused into the product that computes the gradient, as in rowmill, if the
    /// optimizer allows it.
    WithinProducts,
    /// Updates are separate operations, as PyTorch runs them on a GPU.
    Apart,
}

impl Workload<'_> {
    /// Returns the number of ranks in the sharding plan.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.plan.world_size() as usize
    }

    /// Returns the number of samples of the batch that a rank processes.
    #[must_use]
    pub fn samples(&self, rank: usize) -> usize {
        let cut = |rank: usize| self.config.training.batch_size * rank / self.ranks();
        cut(rank + 1) - cut(rank)
    }

    /// Returns the expected use of each tile, in the order of the plan, then that of replicated
    /// tables on each rank.
    #[must_use]
    pub fn tiles(&self) -> Vec<TileUse> {
        let samples = self.config.training.batch_size;
        tile_use::list_tiles(&self.config.model, self.plan, self.features, samples)
    }

    /// Checks that the trainer could run the workload.
    ///
    /// # Errors
    /// [`Error::Workload`] with the first part of the workload that does not fit the model.
    pub fn check(&self) -> Result<(), Error> {
        let model = &self.config.model;
        let wrong = |expected: String, got: String| Err(Error::Workload { expected, got });
        if let Some(table) = model.tables.iter().find(|table| table.is_auto()) {
            let got = format!("rows = \"auto\" of {:?}", table.name);
            return wrong("tables with a known number of rows".to_owned(), got);
        }
        let expected = model.tables.iter().map(|table| table.features.len()).sum::<usize>();
        if self.features.len() != expected {
            let got = self.features.len().to_string();
            return wrong(format!("statistics of {expected} features"), got);
        }
        if self.config.training.batch_size == 0 || self.plan.world_size() == 0 {
            let (samples, ranks) = (self.config.training.batch_size, self.plan.world_size());
            return wrong(
                "at least one sample and one rank".to_owned(),
                format!("{samples} samples, {ranks} ranks"),
            );
        }
        let tiles = || self.plan.tiles().iter().chain(self.plan.replicas());
        let held = tiles().map(|tile| u128::from(tile.rows.end)).max();
        let last = tiles().map(|tile| tile.table.index()).max();
        let most = model.tables.iter().map(|table| u128::from(table.rows)).max();
        if held > most || last.map_or(0, |last| last + 1) != model.tables.len() {
            let got = format!("a plan of {} tables", last.map_or(0, |last| last + 1));
            return wrong(format!("a plan of the {} tables of the model", model.tables.len()), got);
        }
        Ok(())
    }
}
