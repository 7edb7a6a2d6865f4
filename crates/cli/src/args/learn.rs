//! Options of `rowmill predict learn`, as typed.

use std::path::PathBuf;

use clap::Args;

/// Options of `rowmill predict learn`, which learns cost models from measurements.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict learn --output cpu
  rowmill predict step --model dlrm-mlperf --hardware cpu --batch-size 1024
  rowmill predict learn cpu --output again     learn from earlier measurements
  rowmill predict learn run1 run2 --output both        learn from two runs on this machine
  rowmill predict learn suite/ --output gpu    kernel models and overheads of a suite's GPU
  rowmill predict learn --kernels neusight/*.csv.gz --output models
  rowmill predict learn --kernels --shots my-gpu.csv --output models
  rowmill predict learn --kernels --shots new.csv --hardware new.toml --output new     a new GPU

Trains a few steps of each of many made-up configurations and times every operation. One
configuration in five, chosen by a hash, is held out to compute the errors printed. Steps disturbed
by other processes are dropped. The folder receives steps.jsonl (the measurements) and
hardware.json (the model), which --hardware of predict step takes.

Several runs must be of one CPU with the same number of threads. Their measurements are joined and
written to steps.jsonl of the output. Give runs another --seed to measure other configurations.

For a suite that bench/collect recorded on a GPU: its microbenchmarks adapt the built-in kernel
models (one shape in five is held out) and give the rates that the GPU reached; its traces become
calibration.json, which --calibration takes. --hardware takes this folder, too.

With --kernels, kernel models learn from tables of latencies; --models of `predict kernels` and
`predict evaluate --kernels` takes the folder. A table has a header and the columns OPName, Latency
(milliseconds), Device, and the sizes of its operation: B,M,N,K of linear and bmm; B,H of ln,
softmax, add, mul, gelu, relu, tanh; B, Input_Channel, Output_Channel, Kernel_Szie, Input_Size,
Stride, Padding of conv. Other columns are ignored. Of ten shapes, six train the model, two set its
intervals and two test it.")]
#[command(group = clap::ArgGroup::new("latencies").args(["measured", "shots"]).multiple(true))]
pub struct PredictLearn {
    /// A recorded suite, or files or folders of steps measured earlier, plain, gzip or zstd
    /// [default: measure this CPU]. With --kernels, tables of latencies
    #[arg(value_name = "RECORDED")]
    pub measured: Vec<PathBuf>,
    /// Learn kernel models: the paths are CSV tables of measured latencies, plain or compressed
    #[arg(long, requires = "latencies")]
    pub kernels: bool,
    /// With --kernels: adapt the models to the device of this table (five rows or more)
    #[arg(long, value_name = "CSV", requires = "kernels")]
    pub shots: Option<PathBuf>,
    /// With tables or a suite of a GPU that is not built in: its data sheet (docs/add-a-device.md)
    #[arg(long, value_name = "TOML", requires = "latencies")]
    pub hardware: Option<PathBuf>,
    /// Number of configurations to measure, each for a second or two
    #[arg(long, value_name = "N", default_value_t = 300, conflicts_with_all = ["measured", "kernels"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub configurations: u32,
    /// Number of table shapes whose lookups and row updates are measured without a model, in six
    /// rounds of a sixth of a second each
    #[arg(long, value_name = "N", default_value_t = 800, conflicts_with_all = ["measured", "kernels"])]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub tables: u32,
    /// Seed of the random configurations and tables
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["measured", "kernels"])]
    pub seed: u64,
    /// The folder in which the learned files are written
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
}
