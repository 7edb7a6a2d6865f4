//! `--device`: where a model is computed.

use std::fmt;

use clap::Args;

/// Where a model is computed.
#[derive(Clone, Copy, Debug, Args)]
pub struct OnDevice {
    /// Device: cpu; cuda or cuda:N, a GPU (see rowmill doctor device); emulated, GPU kernels on the
    /// CPU, very slowly
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = name)]
    pub device: DeviceName,
    /// Let cuBLASLt round f32 factors to TF32 for tensor cores: faster, but 10 mantissa bits, not
    /// 23; needs --device cuda
    #[arg(long)]
    pub tf32: bool,
}

/// A device by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The host's cores.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
    /// A GPU's kernels, compiled for the host.
    Emulated,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Emulated => f.write_str("emulated"),
        }
    }
}

fn name(text: &str) -> Result<DeviceName, String> {
    match text {
        "cpu" => Ok(DeviceName::Cpu),
        "cuda" => Ok(DeviceName::Cuda(0)),
        "emulated" => Ok(DeviceName::Emulated),
        _ => text
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok())
            .map(DeviceName::Cuda)
            .ok_or_else(|| "expected cpu, cuda, cuda:N or emulated".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceName, name};

    #[test]
    fn devices_have_names() {
        assert_eq!(name("cpu"), Ok(DeviceName::Cpu));
        assert_eq!(name("cuda"), Ok(DeviceName::Cuda(0)));
        assert_eq!(name("cuda:3"), Ok(DeviceName::Cuda(3)));
        assert_eq!(name("emulated"), Ok(DeviceName::Emulated));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:0x1", "CPU"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
