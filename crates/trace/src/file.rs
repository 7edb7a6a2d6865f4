//! Puts a finished file in place: temporary name, sync, rename. Knows nothing of its content.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Writes `path` whole or not at all: what stood there before stays until the new file is on the
/// disk.
///
/// # Errors
/// [`Error::Write`] names the step that failed; the temporary file is removed.
pub fn put(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let temporary = temporary_name(path);
    let done = fill_and_rename(path, &temporary, fill);
    if done.is_err() {
        // The first error is the one to report; a temporary file that was never created cannot be
        // removed.
        let _ = fs::remove_file(&temporary);
    }
    done
}

fn fill_and_rename(
    path: &Path,
    temporary: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |action| {
        let path = path.to_path_buf();
        move |source| Error::Write { path, action, source }
    };
    let mut out = BufWriter::new(File::create(temporary).map_err(failed("create"))?);
    fill(&mut out).and_then(|()| out.flush()).map_err(failed("write"))?;
    out.get_ref().sync_all().map_err(failed("sync"))?;
    fs::rename(temporary, path).map_err(failed("rename"))
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    PathBuf::from(name)
}
