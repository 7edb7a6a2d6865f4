//! Options that determine the costs of launches and kernels in steps without a recording, and the
//! kernels and the order of such steps on GPUs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use predict::step::DenseKernels;
use predict::step::host::DenseUpdateCalls;
use schema::Schedule;
use schema::topology::ProductFormat;

/// Costs of launches and kernels, for a step without a recording.
#[derive(Debug, Args)]
pub struct PricedHost {
    /// Without a recording: microseconds of host time per launch, a lower bound of the step; 0
    /// leaves the host out [default: the time of PyTorch's operators]
    #[arg(long, value_name = "US", value_parser = microseconds)]
    pub launch_us: Option<f64>,
    /// Without a recording: how the host launches the updates of dense weights [default: grouped]
    #[arg(long, value_name = "KIND", value_enum, conflicts_with = "launch_us")]
    pub dense_updates: Option<DenseUpdatesChoice>,
    /// Without a recording: kernel models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
}

/// The kernels and the order of a step on GPUs.
#[derive(Debug, Default, Args)]
pub struct PricedKernels {
    /// Format of products, activations and messages; tables and optimizer states stay f32
    /// [default: that of the configuration]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub precision: Option<PrecisionChoice>,
    /// Which exchanges run beside other stages: `serial` for no exchange, `pipelined` for all, or a
    /// list of input, pooled, gradient and all_reduce [default: pipelined]
    #[arg(long, value_name = "NAME|LIST")]
    pub schedule: Option<Schedule>,
    /// The kernels of dense layers [default: eager]
    #[arg(long, value_name = "KIND", value_enum)]
    pub dense_kernels: Option<DenseKernelsChoice>,
}

/// A format of matrix products, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionChoice {
    /// 32-bit floats
    F32,
    /// 32-bit floats, rounded to ten bits in the tensor cores
    Tf32,
    /// bfloat16
    Bf16,
    /// IEEE floats of 16 bits
    Fp16,
}

impl PrecisionChoice {
    /// Converts the option into the format that it names.
    pub fn format(self) -> ProductFormat {
        match self {
            Self::F32 => ProductFormat::F32,
            Self::Tf32 => ProductFormat::Tf32,
            Self::Bf16 => ProductFormat::Bf16,
            Self::Fp16 => ProductFormat::F16,
        }
    }
}

/// The kernels of dense layers, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DenseKernelsChoice {
    /// One after the other, as PyTorch runs them
    Eager,
    /// Element-wise operations fused, as XLA and torch.compile do
    Compiled,
    /// Compiled, with the dot interaction in one kernel
    FusedInteraction,
}

impl DenseKernelsChoice {
    /// Converts the option into the kernels that it names.
    pub fn kernels(self) -> DenseKernels {
        match self {
            Self::Eager => DenseKernels::Eager,
            Self::Compiled => DenseKernels::Compiled,
            Self::FusedInteraction => DenseKernels::FusedInteraction,
        }
    }
}

/// How the host launches the updates of dense weights, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DenseUpdatesChoice {
    /// One call for the weights of all layers, as in PyTorch 2 on GPUs
    Grouped,
    /// Calls for each layer, as in PyTorch 1 and with foreach=False
    ByLayer,
}

impl PricedHost {
    /// Returns the calls by which the host updates dense weights.
    pub fn dense_updates(&self) -> DenseUpdateCalls {
        match self.dense_updates {
            None | Some(DenseUpdatesChoice::Grouped) => DenseUpdateCalls::Grouped,
            Some(DenseUpdatesChoice::ByLayer) => DenseUpdateCalls::ByLayer,
        }
    }
}

fn microseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    let value = value.filter(|value| (0.0..=1e6).contains(value));
    value.ok_or_else(|| "expected microseconds from 0 to 1000000".to_owned())
}
