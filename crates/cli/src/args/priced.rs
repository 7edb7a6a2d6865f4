//! Options that determine the costs of launches and kernels in steps without a recording.

use std::path::PathBuf;

use clap::Args;

/// Costs of launches and kernels, for a step without a recording.
#[derive(Debug, Args)]
pub struct PricedHost {
    /// Without a recording: microseconds of host time per launch, a lower bound of the step
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds)]
    pub launch_us: f64,
    /// Without a recording: kernel models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
}

fn microseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    let value = value.filter(|value| (0.0..=1e6).contains(value));
    value.ok_or_else(|| "expected microseconds from 0 to 1000000".to_owned())
}
