//! Options that describe a training step that was never run, for predictions.

use std::path::PathBuf;

use clap::Args;

use super::Sharding;

/// The properties of a step that do not follow from its configuration.
#[derive(Debug, Args)]
pub struct NeverRunStep {
    /// Change a key of the configuration, such as optimizer.dense.kind=adagrad
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// Samples per step, over all ranks [default: the configuration's]
    #[arg(long, value_name = "B")]
    pub batch_size: Option<usize>,
    /// Number of ids per bag of features without a size in [synthetic]
    #[arg(long, value_name = "L", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pooling: u32,
    /// Number of ranks that share the samples [default: 1, or those of the hardware]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
    /// How tables are split over ranks [default: table]
    #[arg(long, value_enum)]
    pub sharding: Option<Sharding>,
    /// A sharding plan, as rowmill train takes it
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["sharding", "ranks"])]
    pub plan: Option<PathBuf>,
}
