//! The arguments of `rowmill data cache`, which simulates caches of table rows.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use schema::{CachePolicy, Share};
use setup::args::key_value;

/// Options of `rowmill data cache`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill data convert train.txt --config dlrm-criteo-kaggle -o prepared
  rowmill data cache prepared --config dlrm-criteo-kaggle
  rowmill data cache prepared --config dlrm-criteo-kaggle --policy lfu --sizes 1%,5%,20% --svg m.svg

The batches are those of one epoch of training: their size, order and ids follow from the
configuration. The first half of them fills the caches, and misses are counted in the second half. A
miss is a row of a batch that is not in the cache; a row counts once per batch. Tables too small for a
cache of 64 rows are left out.")]
pub struct SimulateCache {
    /// A prepared folder
    pub folder: PathBuf,
    /// The configuration of the model whose tables are cached
    #[arg(long, value_name = "CONFIG")]
    pub config: String,
    /// Change a key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// The rows that a full cache evicts
    #[arg(long, value_enum, default_value_t = PolicyChoice::Lru)]
    pub policy: PolicyChoice,
    /// Sizes of the caches, as shares of the rows of a table
    #[arg(
        long,
        value_name = "SHARE,…",
        value_delimiter = ',',
        default_value = "0.1%,0.3%,1%,3%,10%,30%",
        value_parser = cache_size
    )]
    pub sizes: Vec<Share>,
    /// Also draw the miss ratios by size
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// Parses the size of a cache, a share above zero.
fn cache_size(text: &str) -> Result<Share, String> {
    let share = text.parse::<Share>().map_err(|error| error.to_string())?;
    if share.0 > 0.0 { Ok(share) } else { Err("a cache without rows misses every row".to_owned()) }
}

/// The policy of the simulated caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyChoice {
    /// Evict the row that was used least recently
    Lru,
    /// Evict the row that the fewest recent batches used
    Lfu,
}

impl From<PolicyChoice> for CachePolicy {
    fn from(choice: PolicyChoice) -> Self {
        match choice {
            PolicyChoice::Lru => Self::Lru,
            PolicyChoice::Lfu => Self::Lfu,
        }
    }
}
