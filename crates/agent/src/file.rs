//! Writes files whole or not at all. Knows nothing of what is in them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file beside `path` and, once it is on the disk, gives it the name.
///
/// # Errors
/// The disk refuses; what stood at `path` is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
