//! The command line of `rowmill tune`.

use clap::Args;

/// Options of `rowmill tune`, which predicts changes that keep the model, and measures the best
/// ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill tune dlrm-default
  rowmill tune my.toml --set model.rows_cap=100000 --steps 20 --format json

Records a few steps at the configured batch size and at twice that size. From these it predicts other
batch sizes, and two ranks that share the threads. Then it measures the three changes with the most
predicted samples per second. Ids are generated and uniform; rowmill train --synthetic runs the same
steps. Only speed is tuned, not the loss: larger batches mean fewer steps per epoch and may need another
learning rate.")]
pub struct Tune {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(value_name = "CONFIG")]
    pub config: String,
    /// Change a key of the configuration, such as training.batch_size=1024
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// Number of steps to record in every run, after eight warm-up steps
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub steps: u64,
}
