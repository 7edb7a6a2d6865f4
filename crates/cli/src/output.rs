//! A file that a command writes: it appears when it is whole, and what stood there stays till then.
//! Pipes and devices, which cannot be replaced, are written in place. Knows nothing of the content.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::interrupt;

/// Fills the file `path`; on an error nothing of it is left.
///
/// # Errors
/// Those of `fill`, with the file named where it was taken for stdout; [`Error::Io`].
pub fn put<T>(path: &Path, fill: impl FnOnce(&mut File) -> Result<T, Error>) -> Result<T, Error> {
    let standing = fs::canonicalize(path).ok();
    if standing.as_ref().is_some_and(|standing| !standing.is_file()) {
        let mut file = File::create(path).map_err(Error::io(path, "create"))?;
        return fill(&mut file).map_err(|error| named(path, error));
    }
    let place = standing.unwrap_or_else(|| path.to_owned());
    let mut partial = place.clone().into_os_string();
    partial.push(format!(".{}.partial", std::process::id()));
    let mut file = File::create(&partial).map_err(Error::io(path, "create"))?;
    let filled = fill(&mut file).map_err(|error| named(path, error)).and_then(|value| {
        file.sync_all().map_err(Error::io(path, "sync"))?;
        fs::rename(&partial, &place).map_err(Error::io(path, "write"))?;
        Ok(value)
    });
    if filled.is_err() {
        // The error that is reported is the one before.
        let _ = fs::remove_file(&partial);
    }
    filled
}

/// From now on Ctrl-C removes what this process has begun to write beside `outs`: `OUT.PID.…`, as
/// [`put`] names it and the crates that write files of their own.
pub fn clear_up_beside(outs: Vec<PathBuf>) {
    interrupt::clear_up(move || outs.iter().for_each(|out| remove_begun(out)));
}

fn remove_begun(out: &Path) {
    let Some(name) = out.file_name() else { return };
    let begun = format!("{}.{}.", name.to_string_lossy(), std::process::id());
    let folder = out.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    // What cannot be listed or removed stays: nobody is left to be told of an error.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begun) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// What writes rows speaks of stdout; here it was this file.
fn named(path: &Path, error: Error) -> Error {
    match error {
        Error::Output(source) => Error::Io { path: path.to_owned(), doing: "write", source },
        other => other,
    }
}
