//! A generator of random planning problems.
//!
//! Published ranges are those of `../shared/reference`:
//! - 9 to 16 tables per GPU on one host, half of them heavy with bags of 20 ids or more, and 512 to
//!   4,096 samples per GPU: the random jobs of TPDS'24 (`performance-model.md` §4.4).
//! - 16 to 256 columns: 16 in DLRM for Criteo Kaggle, 128 in MLPerf, 256 as the most of HugeCTR
//!   (`training.md` §1.2).
//! - 10³ to 10⁷ rows, within MLPerf's 3 to 40 million (`performance-model.md` §3).
//! - Rows are used as often as in the reuse histograms of `dlrm_datasets`, scaled to the ids of the
//!   table.
//!
//! The longest bags (200 ids) and 2 to 4 tables per GPU in jobs of 128 GPUs are our choice. The
//! model of `dlrm_datasets` has 788 to 856 tables, which would take longer to search.

use std::fmt::Write;

use predict::step::{Conditions, Models};
use schema::distribution::ReuseHistogram;
use schema::random::CounterRng;
use schema::topology::Link;
use schema::{FeatureStats, IndexDistribution, JobConfig, Topology};

use plan::{Constraints, PlanProblem, PlanTarget};

/// The hardware of the cases, in turn.
pub const HARDWARE: [&str; 3] = ["dgx-1", "dgx-a100", "16xdgx-h100"];

/// A random problem.
#[derive(Clone)]
pub struct RandomCase {
    pub config: JobConfig,
    pub features: Vec<FeatureStats>,
    pub topology: Topology,
}

impl RandomCase {
    /// Generates the case with a number.
    pub fn new(number: u64) -> Self {
        let hardware = HARDWARE[number as usize % HARDWARE.len()];
        let topology = Topology::parse(hardware).expect("hardware");
        let random = CounterRng::new(47, number);
        let ranks = topology.ranks();
        let per_rank =
            if topology.hosts > 1 { 2 + random.below(0, 3) } else { 9 + random.below(0, 8) };
        let batch = ranks * (512 << random.below(1, 4));
        let config = config((ranks * per_rank) as usize, batch, random);
        let histograms = histograms();
        let features = (0..config.model.tables.len() as u64)
            .map(|at| {
                let random = random.child(at);
                let is_heavy = random.unit(10) < 0.5;
                let ids = if is_heavy {
                    log_uniform(20.0, 200.0, random.unit(11))
                } else {
                    log_uniform(1.0, 20.0, random.unit(11))
                };
                let rows = config.model.tables[at as usize].rows;
                let histogram = histograms[random.below(12, 2) as usize];
                FeatureStats {
                    ids_per_bag: ids,
                    longest_bag: (2.0 * ids).ceil() as u64,
                    ids: scaled(histogram, ids * batch as f64, rows),
                }
            })
            .collect();
        Self { config, features, topology }
    }

    /// Returns the case with all prices changed at random by a factor of 0.8 to 1.2: the lookups
    /// of each table, the bandwidths of the memory and the cache, and those of the links.
    pub fn perturbed(&self, seed: u64) -> Self {
        let random = CounterRng::new(48, seed);
        let factor = |at: u64| 0.8 + 0.4 * random.unit(at);
        let mut case = self.clone();
        let Topology { device, within, between, .. } = &mut case.topology;
        device.dram *= factor(0);
        device.dram_sustained = device.dram_sustained.map(|rate| rate * factor(0));
        device.l2 = device.l2.map(|rate| rate * factor(1));
        within.ring *= factor(2);
        within.all_to_all *= factor(3);
        let ns = |bytes: f64| factor(4) * between.ns(bytes);
        *between = Link::new(&[(1.0, ns(1.0)), (1e6, ns(1e6))], "perturbed").expect("a link");
        for (at, stats) in (0..).zip(&mut case.features) {
            stats.ids_per_bag *= factor(10 + at);
        }
        case
    }

    /// Returns the problem of placing the tables under constraints.
    pub fn problem<'a>(
        &'a self,
        models: &'a Models,
        constraints: &'a Constraints,
    ) -> PlanProblem<'a> {
        let conditions = Conditions::new(&self.topology, models);
        PlanProblem {
            config: &self.config,
            features: &self.features,
            conditions,
            constraints,
            target: PlanTarget::Rowmill,
        }
    }
}

fn log_uniform(low: f64, high: f64, at: f64) -> f64 {
    low * (high / low).powf(at)
}

/// Creates a job with random tables.
pub fn config(tables: usize, batch: u64, random: CounterRng) -> JobConfig {
    let mut list = String::new();
    for at in 0..tables {
        let random = random.child(at as u64);
        let rows = log_uniform(1e3, 1e7, random.unit(0)) as u64;
        let dim = 16usize << random.below(1, 5);
        writeln!(list, "  {{ name = \"t{at}\", rows = {rows}, dim = {dim} }},").expect("text");
    }
    let last = tables - 1;
    let text = format!(
        "[model]\nname = \"random\"\ndense_features = 13\nbottom = [256, 64]\n\
         top = [512, 256, 1]\ninteraction = {{ kind = \"cat\" }}\nloss = \"bce_with_logits\"\n\
         tables = [\n{list}]\n\n[optimizer]\n\
         sparse = {{ kind = \"rowwise_adagrad\", learning_rate = 0.05 }}\n\
         dense = {{ kind = \"adagrad\", learning_rate = 0.01 }}\n\n\
         [training]\nbatch_size = {batch}\n\n[data]\nformat = \"csv\"\n\
         label = {{ column = \"label\" }}\ndense = [{{ column = \"d{{0..12}}\" }}]\n\
         categorical = [{{ column = \"t{{0..{last}}}\", kind = \"integer\" }}]\n"
    );
    JobConfig::parse(&text, &[]).expect("a configuration")
}

/// The published histograms of 2021 and 2022. The shares of uses and the bounds of the classes are
/// those of `dlrm_datasets/embedding_bag_20??_locality_stats.txt.gz`.
fn histograms() -> [ReuseHistogram; 2] {
    let texts = ["2021", "2022"].map(|year| {
        let name = format!("dlrm_datasets/embedding_bag_{year}_locality_stats.txt.gz");
        let path = testkit::fixture::path(&name)?;
        let output = std::process::Command::new("gzip").arg("-dc").arg(path).output().ok()?;
        String::from_utf8(output.stdout).ok()
    });
    texts.map(|text| match text {
        Some(text) => ReuseHistogram::parse(&text, None).expect("a histogram"),
        None => fallback(),
    })
}

/// The histogram of 2021, for machines without the data sets.
fn fallback() -> ReuseHistogram {
    let shares = [
        0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048,
        0.043, 0.031, 0.023, 0.019,
    ];
    let sum: f64 = shares.iter().sum();
    let uses_per_row = std::array::from_fn(|class| 0.75 * 2f64.powi(class as i32)).map(f64::ceil);
    ReuseHistogram { uses: 887_017_990, use_shares: shares.map(|share| share / sum), uses_per_row }
}

/// Scales a histogram to the ids and rows of one table. A class has at least one row, and all
/// classes together have at most the rows of the table.
fn scaled(histogram: ReuseHistogram, uses: f64, rows: u64) -> IndexDistribution {
    let classes = || histogram.use_shares.iter().zip(&histogram.uses_per_row);
    let rows_per_use: f64 = classes().map(|(share, per_row)| share / per_row).sum();
    let uses = uses.min(rows as f64 / rows_per_use).max(1.0);
    let mut scaled = ReuseHistogram { uses: uses as u64, ..histogram };
    for (per_row, share) in scaled.uses_per_row.iter_mut().zip(histogram.use_shares) {
        *per_row = per_row.min((share * uses).max(1.0));
    }
    IndexDistribution::Reuse(scaled)
}
