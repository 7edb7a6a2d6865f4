//! The file format of a GPU whose rates were measured in a suite, or whose data sheet the user
//! gave. The file lies beside the GPU's kernel models.

use std::path::Path;

use schema::HardwareSpec;
use serde::{Deserialize, Serialize};
use setup::error::Error;

use super::folder::{HARDWARE, write};

/// Version of the file format of a learned device.
pub const DEVICE_VERSION: u32 = 1;

/// A GPU with measured rates, as stored in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedDevice {
    pub rowmill_device: u32,
    pub spec: HardwareSpec,
}

/// Parses the file of a learned device. Returns `None` for a file of another kind.
///
/// # Errors
/// [`kernel_model::Error::Model`] for another version, and for values that are not numbers.
pub fn parse(text: &str) -> Result<Option<HardwareSpec>, kernel_model::Error> {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else { return Ok(None) };
    let Some(version) = value.get("rowmill_device") else { return Ok(None) };
    let expected = format!("a device of rowmill predict learn, version {DEVICE_VERSION}");
    if version.as_u64() != Some(u64::from(DEVICE_VERSION)) {
        return Err(kernel_model::Error::Model { expected, got: format!("version {version}") });
    }
    let read: Result<LearnedDevice, _> = serde_json::from_value(value);
    let read =
        read.map_err(|error| kernel_model::Error::Model { expected, got: error.to_string() })?;
    Ok(Some(read.spec))
}

/// Writes the hardware data of a GPU into the folder of its models.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write_device(folder: &Path, spec: &HardwareSpec) -> Result<(), Error> {
    let learned = LearnedDevice { rowmill_device: DEVICE_VERSION, spec: spec.clone() };
    write(&folder.join(HARDWARE), &serde_json::to_string(&learned)?)
}
