//! Reads hardware from TOML files: devices that are not built in, by the fields of `HardwareSpec`,
//! and topologies, which say what `hardware` their links join.

use std::path::Path;

use schema::topology::{HardwareError, Topology, add_hardware};
use schema::{HardwareSpec, topology};

use crate::error::{Error, UsageError};

/// Ending of the files that describe a device.
const ENDING: &str = ".toml";

/// Finds a device by its key or name, or reads it from the TOML file of this name.
///
/// # Errors
/// Returns an error if there is neither, or if the file is not a device.
pub fn find_device(text: &str) -> Result<&'static HardwareSpec, Error> {
    if text.ends_with(ENDING) {
        return read_device(Path::new(text));
    }
    Ok(topology::hardware(text).map_err(kernel_model::Error::from)?)
}

/// Parses a topology such as `h100x8`, or `my-gpu.toml` and `my-gpu.tomlx8` for a device from a
/// file. A file that names its `hardware` is a topology with links of its own.
///
/// # Errors
/// Returns an error if the device is unknown, or if the file is neither a device nor a topology.
pub fn find_topology(text: &str) -> Result<Topology, Error> {
    let parse = |text: &str| Topology::parse(text).map_err(kernel_model::Error::from);
    let Some(end) = text.rfind(ENDING).map(|at| at + ENDING.len()) else { return Ok(parse(text)?) };
    let path = Path::new(&text[..end]);
    let content = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let names_hardware = content.parse::<toml::Table>().is_ok_and(|t| t.contains_key("hardware"));
    if end == text.len() && names_hardware {
        let topology = Topology::from_toml(&content);
        return Ok(topology.map_err(|error| UsageError::Kernels {
            path: path.to_owned(),
            source: error.into(),
        })?);
    }
    let device = read_device(path)?;
    Ok(parse(&format!("{}{}", device.key, &text[end..]))?)
}

/// Reads a device from a TOML file. Afterwards, tables and other options may use its key or name.
///
/// # Errors
/// Returns an error if the file cannot be read, or if it is not a device.
pub fn read_device(path: &Path) -> Result<&'static HardwareSpec, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let wrong = |source| Error::from(UsageError::Kernels { path: path.to_owned(), source });
    let spec: HardwareSpec = toml::from_str(&text).map_err(|error| {
        let expected = "the data sheet of a device in TOML (docs/add-a-device.md)".to_owned();
        wrong(kernel_model::Error::Model { expected, got: error.to_string() })
    })?;
    add_hardware(spec).map_err(|error: HardwareError| wrong(error.into()))
}
