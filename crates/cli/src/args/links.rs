//! The command line of `rowmill doctor links`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use bench::sample::Sampling;
use setup::args::{Processes, size};

/// The text below the options in the help.
pub const AFTER_HELP: &str = "\
Examples:
  rowmill doctor links
  rowmill doctor links --verbs all_to_all --sizes 1M 16M --ranks 2 4 --format json
  rowmill doctor links --latency 20 --bandwidth 3.1
  mpirun -n 2 rowmill doctor links --write-topology cluster.toml --hardware 2xh100x8
  mpirun -n 2 rowmill doctor links

The measured time covers the whole exchange: every rank writes its send buffer, takes part in the
collective, and reads every byte it received. The time of the slowest rank counts.

  bytes                 size of a rank's buffer, counted as in nccl-tests: what the rank sends in a
                        broadcast, all_reduce, reduce_scatter or all_to_all, and what it has after an
                        all_gather
  algorithm_gb_per_s    bytes ÷ time
  bus_gb_per_s          algorithm bandwidth × the share of the buffer that a rank must send: (n−1)/n,
                        but 2(n−1)/n in an all_reduce and 1 in a broadcast
  bus_pct_of_copy       bus bandwidth relative to copy_gb_per_s, the bandwidth at which a rank copies
                        memory while all ranks copy
  alpha_us, beta_ns_per_kb, beta_gb_per_s
                        constants of time = alpha + beta × bytes that a rank must send, fitted to all
                        sizes by least relative error
  latency_us            time of an all_reduce of the smallest size, for the first number of ranks
  all_to_all_gb_per_s, all_reduce_gb_per_s
                        algorithm bandwidth of the largest size, for the first number of ranks
  apparent_clock_ghz    clock of rank 0's core, inferred from a chain of instructions of known latency
  foreign_cpu           share of the time in which threads of rank 0 waited for a core
  rejected_samples      samples that were dropped for a low clock or much foreign CPU
  trusted               false if too few samples were left; the figures are then of all samples";

/// Options of `rowmill doctor links`: the collectives to measure, their sizes, and the ranks and
/// links between which they run.
#[derive(Clone, Debug, Args)]
pub struct DoctorLinks {
    /// Collectives to measure
    #[arg(long, value_name = "VERB", num_args = 1.., value_enum, default_values_t = VerbChoice::ALL)]
    pub verbs: Vec<VerbChoice>,
    /// Sizes of a rank's buffer in bytes, multiples of 4; K stands for 1,024 and M for 1,048,576
    #[arg(long, value_name = "BYTES", num_args = 1.., value_parser = size,
          default_values = ["8", "1K", "32K", "256K", "1M", "4M", "16M"])]
    pub sizes: Vec<usize>,
    /// Numbers of ranks, which are threads of this process. Under mpirun or srun, the processes of
    /// the launcher are the ranks
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [2],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Vec<u32>,
    /// Latency of a slower link to simulate
    #[arg(long, value_name = "MICROSECONDS", requires = "bandwidth", value_parser = positive)]
    pub latency: Option<f64>,
    /// Bandwidth of a slower link to simulate
    #[arg(long, value_name = "GB_PER_S", requires = "latency", value_parser = positive)]
    pub bandwidth: Option<f64>,
    /// Also write the measured all-to-alls as the links between hosts of --hardware, into a
    /// topology file for rowmill predict step --hardware FILE
    #[arg(long, value_name = "FILE.toml", requires = "hardware")]
    pub write_topology: Option<PathBuf>,
    /// With --write-topology: the hosts and devices of the cluster, as in 4xh100x8
    #[arg(long, value_name = "DEVICES", requires = "write_topology")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub processes: Processes,
}

/// A collective as it is typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum VerbChoice {
    /// Send one rank's values to all ranks
    Broadcast,
    /// Send every rank's values to all ranks
    AllGather,
    /// Send the sum over all ranks to all ranks
    AllReduce,
    /// Send a part of the sum over all ranks to each rank
    ReduceScatter,
    /// Send a part of the buffer from each rank to each other rank
    AllToAll,
    /// Wait until all ranks have arrived
    Barrier,
}

impl VerbChoice {
    const ALL: [Self; 6] = [
        Self::AllToAll,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
    ];

    /// Converts the option into the collective that it names.
    pub fn verb(self) -> comm::Verb {
        match self {
            Self::Broadcast => comm::Verb::Broadcast,
            Self::AllGather => comm::Verb::AllGather,
            Self::AllReduce => comm::Verb::AllReduce,
            Self::ReduceScatter => comm::Verb::ReduceScatter,
            Self::AllToAll => comm::Verb::AllToAll,
            Self::Barrier => comm::Verb::Barrier,
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| format!("expected a number above 0, got {text:?}"))
}
