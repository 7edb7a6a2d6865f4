//! `rowmill doctor links` as typed.

use clap::{Args, ValueEnum};

use bench::sample::Sampling;
use setup::args::{Processes, size};

pub const AFTER: &str = "\
Examples:
  rowmill doctor links
  rowmill doctor links --verbs all_to_all --sizes 1M 16M --ranks 2 4 --format json
  rowmill doctor links --latency 20 --bandwidth 3.1
  mpirun -n 2 rowmill doctor links

Every rank writes its send buffer, takes part, and reads every byte it received; all of it is timed.
The slowest rank counts.

  bytes                 buffer of a rank, counted as in nccl-tests: what it sends in a broadcast,
                        all_reduce, reduce_scatter or all_to_all, what it has after an all_gather
  algorithm_gb_per_s    bytes ÷ time
  bus_gb_per_s          the same times the share that a rank must send: (n−1)/n of it, 2(n−1)/n in an
                        all_reduce, all of it in a broadcast
  bus_pct_of_copy       share of copy_gb_per_s, the copy bandwidth of a rank while all ranks copy
  alpha_us, beta_ns_per_kb, beta_gb_per_s
                        time = alpha + beta × bytes that a rank must send, fitted to all sizes by
                        least relative error
  latency_us            of an all_reduce of the smallest size; …_gb_per_s at the top: algorithm
                        bandwidth of the largest size, of the first number of ranks
  apparent_clock_ghz, foreign_cpu, rejected_samples, trusted
                        clock inferred from a chain of known latency, and share of the time
                        in which our threads waited for a core, both seen by rank 0; samples with
                        too low a clock or too much foreign CPU are dropped; if too few are left,
                        trusted is false and the figures are of all samples";

/// Which collectives, of what size, over what.
#[derive(Clone, Debug, Args)]
pub struct DoctorLinks {
    /// Collectives
    #[arg(long, value_name = "VERB", num_args = 1.., value_enum, default_values_t = VerbChoice::ALL)]
    pub verbs: Vec<VerbChoice>,
    /// Bytes of a rank's buffer, with K for 1,024 and M for 1,048,576; multiples of 4
    #[arg(long, value_name = "BYTES", num_args = 1.., value_parser = size,
          default_values = ["8", "1K", "32K", "256K", "1M", "4M", "16M"])]
    pub sizes: Vec<usize>,
    /// Ranks, as threads of this process; under mpirun or srun, its processes are used
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [2],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Vec<u32>,
    /// Latency of a simulated slower link
    #[arg(long, value_name = "MICROSECONDS", requires = "bandwidth", value_parser = positive)]
    pub latency: Option<f64>,
    /// Bandwidth of a simulated slower link
    #[arg(long, value_name = "GB_PER_S", requires = "latency", value_parser = positive)]
    pub bandwidth: Option<f64>,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub processes: Processes,
}

/// A collective as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum VerbChoice {
    /// One rank's values to all.
    Broadcast,
    /// Every rank's values to all.
    AllGather,
    /// The sum over ranks to all.
    AllReduce,
    /// The sum over ranks, a part to each.
    ReduceScatter,
    /// A part from each to each.
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

    /// The collective that the option names.
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
