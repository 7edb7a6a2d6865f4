//! The files in the folder that `rowmill predict learn` writes.

use std::io::Write;
use std::path::Path;

use setup::error::Error;
use setup::output;

/// Name of the file with the learned CPU or GPU. The option `--hardware` takes the folder.
pub const HARDWARE: &str = "hardware.json";

/// Writes a text file completely, or not at all if an error occurs.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    output::put(path, |file| file.write_all(text.as_bytes()).map_err(Error::io(path, "write")))
}
