//! `rowmill predict hardware | kernels | train-kernels` as typed: predictions without a trace.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of `rowmill predict hardware`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict hardware
  rowmill predict hardware v100 h100 --format json
  rowmill predict hardware --this-machine

Peaks are those of data sheets, without sparsity; `sustained` is what a benchmark reached. The key
is what --hardware takes, as in v100, h100x8 or 4xh100x8.")]
pub struct PredictHardware {
    /// Devices by key or name [default: all]
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Also measure this machine's CPU (takes a few seconds)
    #[arg(long)]
    pub this_machine: bool,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `rowmill predict kernels`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict kernels --hardware a100 'linear 2048 1024 1024' 'bmm 2048 27 27 128'
  rowmill predict kernels --hardware h100 --hardware v100 'softmax 4096 1024' --format json
  rowmill predict kernels --hardware h100x8 'all_to_all 16777216' 'all_reduce 1576964'

  linear m n k                   out[m,n] = in[m,k] W[n,k]
  bmm batch m n k
  conv batch channels_in channels_out kernel size stride padding
  layer_norm rows columns        softmax rows columns
  add|mul|gelu|relu|tanh elements
  embedding batch tables rows dim pooling    one pooled lookup of equal tables, uniform ids
  embedding_backward batch tables rows dim pooling    the update of its rows by SGD
  concat rows parts columns      transpose rows parts columns
  tril rows vectors              tril_backward rows vectors    pairs of an interaction
  copy bytes                     copy_to_device|copy_to_host bytes    from and to pinned memory;
                                 with _pageable from and to other memory
  all_to_all|all_reduce bytes    of every rank; the hardware must have several, as in h100x8

All in f32. A price is the kernel's own time, without the host's launch time. The first three lines
are learned from measurements, the others are formulas. The last column says if a price is not backed
by similar measurements.")]
pub struct PredictKernels {
    /// Operations with their sizes, each in quotes
    #[arg(required = true, value_name = "WORK")]
    pub works: Vec<String>,
    /// A device that `rowmill predict hardware` lists, or several as in h100x8 (repeatable)
    #[arg(long, value_name = "DEVICE", required = true)]
    pub hardware: Vec<String>,
    /// Models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `rowmill predict train-kernels`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict train-kernels neusight/*.csv.gz --output models
  rowmill predict train-kernels --shots my-gpu.csv --output models
  rowmill predict evaluate --kernels neusight/*.csv.gz --models models

A table has a header and the columns OPName, Latency (milliseconds), Device, and the sizes of its
operation: B,M,N,K of linear and bmm; B,H of ln, softmax, add, mul, gelu, relu, tanh; B,
Input_Channel, Output_Channel, Kernel_Szie, Input_Size, Stride, Padding of conv. Other columns are
ignored. Of ten shapes, six train the model, two set its intervals and two test it.")]
pub struct PredictTrainKernels {
    /// Tables of measured latencies: CSV, plain or compressed
    #[arg(value_name = "CSV", required_unless_present = "shots")]
    pub tables: Vec<PathBuf>,
    /// Adapt the models to the device of this table (five rows or more)
    #[arg(long, value_name = "CSV")]
    pub shots: Option<PathBuf>,
    /// The folder to write models into
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
}

/// What `evaluate` does with tables of measured kernels.
#[derive(Debug, Args)]
pub struct KernelEvaluation {
    /// Evaluate kernel models: the paths are tables of measured latencies, or a suite that
    /// bench/collect recorded on a GPU
    #[arg(long, conflicts_with = "calibrate_ranks")]
    pub kernels: bool,
    /// With --kernels: leave out each device in turn and predict it from the others
    #[arg(long, requires = "kernels")]
    pub leave_out: bool,
    /// With --kernels: models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER", requires = "kernels", conflicts_with = "leave_out")]
    pub models: Option<PathBuf>,
    /// With --kernels: also train the MLPs of arXiv:2201.07821 and print their errors. `small`
    /// [default] tries 16 settings and takes minutes to an hour; `whole` tries all 280 of its Table
    /// II, for weeks on a CPU
    #[arg(long, value_name = "GRID", requires = "kernels", conflicts_with = "leave_out")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "small")]
    pub published: Option<PublishedGrid>,
}

/// Settings of the published MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PublishedGrid {
    /// 16 settings for 8 epochs each, the best one for 120.
    Small,
    /// All 280 settings for 800 epochs each.
    Whole,
}
