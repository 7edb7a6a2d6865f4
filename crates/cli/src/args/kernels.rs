//! Options of `rowmill predict kernels` and `rowmill predict evaluate --kernels`, as typed. Both
//! commands predict kernels without a trace.

use std::path::PathBuf;

use clap::Args;

/// Options of `rowmill predict kernels`, which predicts the times of single kernels.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict kernels --hardware a100 'linear 2048 1024 1024' 'bmm 2048 27 27 128'
  rowmill predict kernels --hardware h100 --hardware v100 'softmax 4096 1024' --format json
  rowmill predict kernels --hardware h100x8 'all_to_all 16777216' 'all_reduce 1576964'
  rowmill predict kernels --list-hardware
  rowmill predict kernels --list-hardware v100 h100 --format json
  rowmill predict kernels --list-hardware --this-machine

  linear m n k                   out[m,n] = in[m,k] W[n,k]
  bmm batch m n k
  conv batch channels_in channels_out kernel size stride padding
  layer_norm rows columns        softmax rows columns
  add|mul|gelu|relu|tanh elements
  embedding batch tables rows dim pooling    one pooled lookup of equal tables, uniform ids
  embedding_backward batch tables rows dim pooling    the update of its rows by SGD
  concat rows parts columns      transpose rows parts columns
  tril rows vectors              tril_backward rows vectors    pairs of an interaction
  batch_norm batch channels pixels           batch_norm_backward batch channels pixels
  conv2d batch channels_in channels_out height width kernel_height kernel_width stride
         padding_height padding_width        a window of any shape
  copy bytes                     copy_to_device|copy_to_host bytes    from and to pinned memory;
                                 with _pageable from and to other memory
  all_to_all|all_reduce|all_gather|reduce_scatter bytes
                                 of every rank; the hardware must have several, as in h100x8

All in f32. A price is the kernel's own time, without the host's launch time. The first three lines
are learned from measurements, the others are formulas. The last column says if a price is not backed
by similar measurements.
Peaks of --list-hardware are those of data sheets, without sparsity; `sustained` is what a benchmark
reached. The key is what --hardware takes, as in v100, h100x8 or 4xh100x8. For a GPU that is not
built in, --hardware takes a TOML file with its data sheet (docs/add-a-device.md).")]
pub struct PredictKernels {
    /// Operations with their sizes, each in quotes
    #[arg(required_unless_present = "list_hardware", value_name = "WORK")]
    pub works: Vec<String>,
    /// A device that --list-hardware prints, or several devices, as in h100x8, or a TOML file with
    /// a data sheet (repeatable)
    #[arg(long, value_name = "DEVICE", required_unless_present = "list_hardware")]
    pub hardware: Vec<String>,
    /// Models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
    /// Print the hardware data of these devices, with sources, by key or name [default: all
    /// devices]
    #[arg(long, value_name = "DEVICE", num_args = 0..)]
    #[arg(conflicts_with_all = ["works", "hardware", "models"])]
    pub list_hardware: Option<Vec<String>>,
    /// With --list-hardware: also measure this machine's CPU (takes a few seconds)
    #[arg(long, requires = "list_hardware")]
    pub this_machine: bool,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `rowmill predict evaluate` for tables of measured kernels.
#[derive(Debug, Args)]
pub struct KernelEvaluation {
    /// Evaluate kernel models: the paths are tables of measured latencies
    #[arg(long, conflicts_with = "calibrate_ranks")]
    pub kernels: bool,
    /// With --kernels: leave out each device in turn and predict it from the others
    #[arg(long, requires = "kernels")]
    pub leave_out: bool,
    /// With --kernels: models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER", requires = "kernels", conflicts_with = "leave_out")]
    pub models: Option<PathBuf>,
}
