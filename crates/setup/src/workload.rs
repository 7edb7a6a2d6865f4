//! Describes a training step that was never run, with its configuration, its sharding plan and its
//! ids.

use std::path::Path;

use schema::{FeatureStats, HostLayout, IdLaw, JobConfig, ReplicaGroups, ShardingPlan};

use crate::args::{NeverRunStep, RANKS_MAX, Sharding};
use crate::config::{self, ResolvedJob};
use crate::error::{Error, UsageError};
use crate::feature_stats_file;
use crate::plan::{self, FixedPlan, Tiling};
use crate::rows;
use crate::synthetic::Laws;

/// A complete description of a training step.
pub struct Workload {
    /// The configuration, with the requested batch size.
    pub job: ResolvedJob,
    pub tiling: Tiling,
    pub plan: ShardingPlan,
    /// Bag length and distribution of the ids of each feature.
    pub features: Vec<FeatureStats>,
}

/// The hosts of the hardware on which a step would run.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadHosts {
    /// Number of ranks over all hosts.
    pub ranks: u64,
    /// Is `None` if all ranks are on one host.
    pub ranks_per_host: Option<u32>,
}

impl WorkloadHosts {
    /// One host with one rank.
    pub const ONE_RANK: Self = Self { ranks: 1, ranks_per_host: None };
}

impl Workload {
    /// Resolves the configuration `name` with the options `asked`. Without an option for ranks or a
    /// plan, the step runs on all ranks of the `hosts`.
    pub fn resolve(name: &str, asked: &NeverRunStep, hosts: WorkloadHosts) -> Result<Self, Error> {
        let mut overrides = asked.set.clone();
        let size =
            asked.batch_size.map(|size| ("training.batch_size".to_owned(), size.to_string()));
        overrides.extend(size);
        let job = config::job(name, &overrides)?;
        let tables = &job.config.model.tables;
        rows::check_known(tables, "the prediction of a step")?;
        let tiling = match &asked.plan {
            Some(path) => {
                let plan = plan::read(path, tables)?;
                // A file of tiles does not say which ranks share a host; the hardware does.
                let ranks = plan.hosts().world_size() as u32;
                let plan = match hosts.ranks_per_host {
                    Some(per_host) => plan.on_hosts(host_layout(ranks, per_host)),
                    None => plan,
                };
                Tiling::Fixed(FixedPlan { plan, sharding: None })
            }
            None => {
                let ranks = asked.ranks.map_or(hosts.ranks, u64::from);
                let known = u32::try_from(ranks).ok().filter(|ranks| *ranks <= RANKS_MAX);
                let ranks = known.ok_or_else(|| predict::Error::Workload {
                    expected: format!("at most {RANKS_MAX} ranks"),
                    got: ranks.to_string(),
                })?;
                let hosts = host_layout(ranks, hosts.ranks_per_host.unwrap_or(ranks));
                let sharding = asked.sharding.unwrap_or(Sharding::Table);
                Tiling::new(sharding, hosts, ReplicaGroups::SINGLE)?
            }
        };
        let plan = tiling.plan(tables);
        let features = feature_stats(&job.config, asked.pooling)?;
        Ok(Self { job, tiling, plan, features })
    }

    /// Borrows the workload in the form that the crate `predict` accepts.
    pub fn borrowed(&self) -> predict::workload::Workload<'_> {
        predict::workload::Workload {
            config: &self.job.config,
            plan: &self.plan,
            features: &self.features,
        }
    }
}

/// Fills hosts with ranks in order.
fn host_layout(ranks: u32, per_host: u32) -> HostLayout {
    let hosts: Vec<u32> = (0..ranks).map(|rank| rank / per_host.max(1)).collect();
    HostLayout::from_hosts(&hosts)
}

/// Describes the features of a configuration by `[synthetic]`. Without a size or a distribution
/// there, bags have `pooling` ids, which are uniform.
///
/// # Errors
/// A distribution names a file that cannot be read.
pub fn feature_stats(config: &JobConfig, pooling: u32) -> Result<Vec<FeatureStats>, Error> {
    let model = &config.model;
    let mut features = FeatureStats::with_bag_sizes(config, pooling);
    let mut laws = Laws::default();
    for (stats, feature) in features.iter_mut().zip(model.features()) {
        let law = config.synthetic.law(&model.tables[feature.table].name);
        stats.ids = laws.distribution(law.unwrap_or(&IdLaw::Uniform))?;
    }
    Ok(features)
}

/// Describes the features of a configuration for a plan: by the file that `plan.stats` names, or
/// else as [`feature_stats`] does. `pooling` is 1 if the user does not choose it.
///
/// # Errors
/// Returns an error if a file cannot be read or describes other features, and
/// [`UsageError::PoolingBesideStats`] if `pooling` is given but has no effect.
pub fn planned_features(
    config: &JobConfig,
    pooling: Option<u32>,
) -> Result<Vec<FeatureStats>, Error> {
    match (&config.plan.stats, pooling) {
        (Some(file), Some(_)) => Err(UsageError::PoolingBesideStats { file: file.clone() }.into()),
        (Some(file), None) => feature_stats_file::read(Path::new(file), config),
        (None, pooling) => feature_stats(config, pooling.unwrap_or(1)),
    }
}
