//! Writes a file that appears complete or not at all, compressed according to its name.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use trace::file::create_anew;

use crate::Error;

/// Runs `fill` on a temporary file beside `path`, syncs it and renames it. On failure the file is
/// removed.
pub(super) fn replace<T>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut name = OsString::from(path);
    name.push(format!(".{}.partial", std::process::id()));
    let temporary = PathBuf::from(name);
    let result = fill_and_rename(path, &temporary, fill);
    if result.is_err() {
        // The first error is reported; failing to remove the file adds no information.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn fill_and_rename<T>(
    path: &Path,
    temporary: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
) -> Result<T, Error> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let file = BufWriter::with_capacity(1 << 20, create_anew(temporary).map_err(failed)?);
    let extension = path.extension().and_then(|extension| extension.to_str());
    let (value, file) = match extension {
        Some("gz") => {
            let mut out = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            let value = fill(&mut out)?;
            (value, out.finish().map_err(failed)?)
        }
        Some("zst") => {
            let mut out = zstd::Encoder::new(file, 1).map_err(failed)?;
            let value = fill(&mut out)?;
            (value, out.finish().map_err(failed)?)
        }
        _ => {
            let mut out = file;
            (fill(&mut out)?, out)
        }
    };
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    // The content must be on disk before the file gets its name.
    file.sync_all().map_err(failed)?;
    fs::rename(temporary, path).map_err(failed)?;
    sync_folder(path).map_err(failed)?;
    Ok(value)
}

/// Syncs the folder, so that the rename survives a crash.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) fn stream_error(source: io::Error) -> Error {
    Error::Io { path: PathBuf::from("-"), source }
}
