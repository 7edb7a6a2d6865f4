//! Serializes kernel models as versioned JSON that is compressed with Zstandard.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Error;
use super::model::{DeviceModel, DeviceResidual, KernelModel};

/// Version of the file format that is written, and the only version that can be read.
pub const VERSION: u32 = 5;
/// Zstandard compression level. The high cost of this level is acceptable because a model is
/// written once.
const LEVEL: i32 = 19;
/// Maximum size of the decompressed JSON, so that a damaged file cannot exhaust the memory.
const JSON_BYTES_MOST: usize = 64 << 20;

/// The JSON document of a model file.
#[derive(Serialize, Deserialize)]
struct ModelFile<M> {
    rowmill_kernel_model: u32,
    model: M,
}

impl KernelModel {
    /// Serializes the model as compressed JSON with a checksum.
    ///
    /// # Errors
    /// [`Error::Model`] if the model contains numbers that JSON cannot represent.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let file = ModelFile { rowmill_kernel_model: VERSION, model: self };
        let json = serde_json::to_vec(&file)
            .map_err(|error| wrong("numbers that JSON can hold", &error))?;
        let compress = || {
            let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
            compressor.include_checksum(true)?;
            compressor.compress(&json)
        };
        compress().map_err(|error| wrong("a model that can be compressed", &error))
    }

    /// Parses the bytes that [`KernelModel::to_bytes`] writes.
    ///
    /// # Errors
    /// [`Error::Model`] if the version differs, or if the bytes are damaged or are not a model.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let json = zstd::bulk::decompress(bytes, JSON_BYTES_MOST).map_err(|error| {
            let expected = format!("an undamaged kernel model of rowmill, version {VERSION}");
            wrong(&expected, &format!("bytes that cannot be decompressed ({error})"))
        })?;
        // Parse the version separately only after an error, because that parses the JSON twice.
        let file: ModelFile<Self> = serde_json::from_slice(&json).map_err(|error| {
            let version = serde_json::from_slice::<ModelFile<IgnoredAny>>(&json)
                .map_or(VERSION, |file| file.rowmill_kernel_model);
            check_version(version).err().unwrap_or_else(|| wrong("a kernel model", &error))
        })?;
        check_version(file.rowmill_kernel_model)?;
        if is_valid(&file.model) {
            Ok(file.model)
        } else {
            Err(wrong("a valid kernel model", &"numbers out of range or arrays of wrong length"))
        }
    }
}

fn check_version(version: u32) -> Result<(), Error> {
    if version == VERSION {
        Ok(())
    } else {
        Err(wrong(&format!("version {VERSION}"), &format!("version {version}")))
    }
}

/// Checks what prediction relies on: array lengths that agree, and positive finite numbers.
fn is_valid(model: &KernelModel) -> bool {
    let is_device_valid = |device: &DeviceModel| {
        let is_residual_valid = match &device.residual {
            DeviceResidual::Own(forest) => forest.fits(&model.bins),
            DeviceResidual::Adapted(adaptation) => {
                adaptation.is_valid(model.transfer.teachers.len())
            }
        };
        is_residual_valid
            && device.floors.is_valid()
            && device.line.is_valid()
            && device.interval.is_valid()
            && device.slack > 0.0
    };
    let sizes = model.kind.sizes().len();
    model.bins.is_valid()
        && model.least.len() == sizes
        && model.most.len() == sizes
        && model.transfer.is_valid()
        && !model.devices.is_empty()
        && model.devices.iter().all(is_device_valid)
}

fn wrong(expected: &str, got: &impl ToString) -> Error {
    Error::Model { expected: expected.to_owned(), got: got.to_string() }
}
