//! The option `--device`, which chooses the CPU, a GPU or the emulator.

use std::fmt;

use clap::Args;

/// The device on which a model is computed, with the precision of its matrix products.
#[derive(Clone, Copy, Debug, Args)]
pub struct OnDevice {
    /// Device: cpu; cuda:N, a GPU (see rowmill doctor device); cuda, the GPU of this process's
    /// local rank, or cuda:0; emulated, GPU kernels on the CPU, very slowly
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = name)]
    pub device: DeviceName,
    /// Let cuBLASLt round f32 factors to TF32 for tensor cores: faster, but 10 mantissa bits, not
    /// 23; needs --device cuda
    #[arg(long)]
    pub tf32: bool,
}

/// A device, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    Cpu,
    /// The GPU with this number. Without a number, this is the GPU of this process's local rank.
    Cuda(Option<usize>),
    /// GPU kernels that are compiled for the CPU of the host.
    Emulated,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(number)) => write!(f, "cuda:{number}"),
            Self::Emulated => f.write_str("emulated"),
        }
    }
}

fn name(text: &str) -> Result<DeviceName, String> {
    match text {
        "cpu" => Ok(DeviceName::Cpu),
        "cuda" => Ok(DeviceName::Cuda(None)),
        "emulated" => Ok(DeviceName::Emulated),
        _ => text
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok())
            .map(|number| DeviceName::Cuda(Some(number)))
            .ok_or_else(|| "expected cpu, cuda, cuda:N or emulated".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceName, name};

    #[test]
    fn devices_have_names() {
        assert_eq!(name("cpu"), Ok(DeviceName::Cpu));
        assert_eq!(name("cuda"), Ok(DeviceName::Cuda(None)));
        assert_eq!(name("cuda:3"), Ok(DeviceName::Cuda(Some(3))));
        assert_eq!(name("emulated"), Ok(DeviceName::Emulated));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:0x1", "CPU"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
