//! A step that was never run: its configuration, sharding and ids.

use schema::{FeatureStats, IdLaw, ShardingPlan};

use crate::args::{NeverRunStep, RANKS_MAX, Sharding};
use crate::config::{self, ResolvedJob};
use crate::error::Error;
use crate::plan::{self, Tiling};
use crate::synthetic::Laws;

/// All that describes a step.
pub struct Workload {
    /// The model, with the requested batch size.
    pub job: ResolvedJob,
    /// How tables are split.
    pub tiling: Tiling,
    pub plan: ShardingPlan,
    /// How each feature is used.
    pub features: Vec<FeatureStats>,
}

impl Workload {
    /// The step of `name` that `asked` describes, over `ranks` unless it says how many.
    pub fn resolve(name: &str, asked: &NeverRunStep, ranks: u64) -> Result<Self, Error> {
        let mut overrides = asked.set.clone();
        let size =
            asked.batch_size.map(|size| ("training.batch_size".to_owned(), size.to_string()));
        overrides.extend(size);
        let job = config::job(name, &overrides)?;
        let tables = &job.config.model.tables;
        let tiling = match &asked.plan {
            Some(path) => Tiling::File(plan::read(path, tables)?),
            None => {
                let ranks = asked.ranks.map_or(ranks, u64::from);
                let known = u32::try_from(ranks).ok().filter(|ranks| *ranks <= RANKS_MAX);
                let ranks = known.ok_or_else(|| predict::Error::Workload {
                    expected: format!("at most {RANKS_MAX} ranks"),
                    got: ranks.to_string(),
                })?;
                Tiling::Made(asked.sharding.unwrap_or(Sharding::Table), ranks)
            }
        };
        let plan = tiling.plan(tables);
        let features = features(&job, asked.pooling)?;
        Ok(Self { job, tiling, plan, features })
    }

    /// The workload as the crate `predict` takes it.
    pub fn borrowed(&self) -> predict::workload::Workload<'_> {
        predict::workload::Workload {
            config: &self.job.config,
            plan: &self.plan,
            features: &self.features,
        }
    }
}

/// Bags of one length, with ids as `[synthetic]` says, or used alike.
fn features(job: &ResolvedJob, pooling: u32) -> Result<Vec<FeatureStats>, Error> {
    let model = &job.config.model;
    let mut features = FeatureStats::uniform(model, pooling);
    let mut laws = Laws::default();
    for (stats, feature) in features.iter_mut().zip(model.features()) {
        let law = job.config.synthetic.law(&model.tables[feature.table].name);
        stats.ids = laws.distribution(law.unwrap_or(&IdLaw::Uniform))?;
    }
    Ok(features)
}
