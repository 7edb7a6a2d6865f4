//! The folder that `rowmill predict learn` writes. Knows nothing of what is in its files.

use std::io::Write;
use std::path::Path;

use setup::error::Error;
use setup::output;

/// What was learned of a CPU or a GPU: what --hardware takes.
pub const HARDWARE: &str = "hardware.json";

/// Writes a file, whole or not at all.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    output::put(path, |file| file.write_all(text.as_bytes()).map_err(Error::io(path, "write")))
}
