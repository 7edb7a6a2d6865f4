//! `rowmill tune` as typed.

use clap::Args;

/// Predict changes that keep the model, and measure the best.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill tune dlrm-default
  rowmill tune my.toml --set model.rows_cap=100000 --steps 20 --format json

Records a few steps at the configured batch size and at twice that, predicts other batch sizes and two
ranks that share the threads, and measures the three with the most predicted samples per second.
Ids are generated and uniform; rowmill train --synthetic runs the same steps. Larger batches mean
fewer steps per epoch and may need another learning rate; the loss is not tuned.")]
pub struct Tune {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(value_name = "CONFIG")]
    pub config: String,
    /// Change a key of the configuration, such as training.batch_size=1024
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// Steps to record in every run, after eight warm-up steps
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub steps: u64,
}
