//! A file that a command writes: it appears when it is whole, and what stood there stays till then.
//! Pipes and devices, which cannot be replaced, are written in place. Commands check an output
//! before their work: what cannot be written must not cost an hour first. Knows nothing of the
//! content.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use trace::file::create_anew;

use crate::args::OutputPath;
use crate::error::{Error, RunError};
use crate::interrupt;

/// Whether all that a command writes can be written, as far as one can know before; writes nothing.
///
/// # Errors
/// The first that cannot, and what stands in the way.
pub fn check_all(outputs: &[OutputPath]) -> Result<(), Error> {
    outputs.iter().try_for_each(|output| match output {
        OutputPath::File(path) => check(path),
        OutputPath::RegularFile(path) if !path.is_dir() && is_written_in_place(path) => {
            Err(RunError::OutputIsSpecial { path: path.clone() }.into())
        }
        OutputPath::RegularFile(path) => check(path),
        OutputPath::Folder(path) => check_new_folder(path),
    })
}

/// Whether the file `path` can be written, as far as one can know before: its folder is there and
/// takes new files, and what has its name can be replaced.
///
/// # Errors
/// What stands in the way, by name. A full disk is found only by writing.
fn check(path: &Path) -> Result<(), Error> {
    let is_folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder || path.file_name().is_none() {
        return Err(RunError::OutputIsFolder { path: path.to_owned() }.into());
    }
    if is_written_in_place(path) {
        return writable(path, path, Access::WRITE_OK);
    }
    match fs::canonicalize(path) {
        Ok(standing) => check_folder(above(&standing), path),
        Err(_) => check_folder(above(path), path),
    }
}

/// Whether a new folder `path` could be made, or files be made in the one that stands there; makes
/// nothing.
///
/// # Errors
/// The first of its parents that stands in the way.
fn check_new_folder(path: &Path) -> Result<(), Error> {
    let standing = path.ancestors().find(|folder| fs::symlink_metadata(shown(folder)).is_ok());
    check_folder(shown(standing.unwrap_or(Path::new("."))), path)
}

/// The folder `path`, made where it is missing.
///
/// # Errors
/// It cannot be made, or no files in it.
pub fn folder(path: &Path) -> Result<NewFolder, Error> {
    check_new_folder(path)?;
    let missing = path.ancestors().take_while(|folder| !shown(folder).exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    let ours: Vec<PathBuf> = missing.iter().rev().cloned().collect();
    let interrupted = interrupt::scoped(move || remove_empty(&ours));
    let mut made = NewFolder { made: Vec::new(), _interrupted: interrupted };
    for folder in missing.into_iter().rev() {
        match fs::create_dir(&folder) {
            Ok(()) => made.made.push(folder),
            // `a/../b`, or another command at the same time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => return Err(Error::io(path, "create")(error)),
        }
    }
    Ok(made)
}

/// Folders that a command made. Those without content when it is dropped, or at Ctrl-C, are removed
/// again: a command that failed leaves none behind.
#[derive(Debug)]
pub struct NewFolder {
    /// From the outermost to the innermost.
    made: Vec<PathBuf>,
    _interrupted: interrupt::CleanupScope,
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        remove_empty(&self.made);
    }
}

/// Removes folders, given from the outermost to the innermost, in which nothing was written.
fn remove_empty(folders: &[PathBuf]) {
    if let Some(innermost) = folders.last() {
        prune(innermost);
    }
    for folder in folders.iter().rev() {
        // Removes only empty folders; a file in it is the reason to keep it.
        let _ = fs::remove_dir(folder);
    }
}

/// Removes the empty folders below a folder and the folder itself, with the files without content
/// (a lock, a marker) that are all there is; whether it is gone.
fn prune(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let (mut empty, mut has_content) = (Vec::new(), false);
    for entry in entries.flatten() {
        match entry.metadata() {
            Ok(found) if found.is_dir() => has_content |= !prune(&entry.path()),
            Ok(found) if found.is_file() && found.len() == 0 && !is_locked(&entry.path()) => {
                empty.push(entry.path());
            }
            _ => has_content = true,
        }
    }
    if !has_content {
        // What cannot be removed keeps its folder.
        empty.iter().for_each(|path| drop(fs::remove_file(path)));
    }
    !has_content && fs::remove_dir(folder).is_ok()
}

/// Whether a pipe or a device has the name. `/dev/stdout` leads to one that has no path of its own.
fn is_written_in_place(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|standing| !standing.is_file())
}

/// Whether another command works there.
fn is_locked(path: &Path) -> bool {
    let locked = File::open(path).map(|file| file.try_lock());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}

fn check_folder(folder: &Path, path: &Path) -> Result<(), Error> {
    let found = fs::metadata(folder);
    if found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let folder = folder.to_owned();
        return Err(RunError::NoOutputFolder { path: path.to_owned(), folder }.into());
    }
    if !found.map_err(Error::io(path, "create"))?.is_dir() {
        return Err(
            RunError::OutputBelowFile { path: path.to_owned(), file: folder.to_owned() }.into()
        );
    }
    writable(folder, path, Access::WRITE_OK | Access::EXEC_OK)
}

fn writable(standing: &Path, path: &Path, access: Access) -> Result<(), Error> {
    let found = rustix::fs::access(standing, access);
    found.map_err(|errno| Error::io(path, "write")(io::Error::from(errno)))
}

/// The folder of a path, `.` for a bare name.
fn above(path: &Path) -> &Path {
    path.parent().map_or(Path::new("/"), shown)
}

fn shown(folder: &Path) -> &Path {
    if folder == Path::new("") { Path::new(".") } else { folder }
}

/// Fills the file `path`; on an error nothing of it is left.
///
/// # Errors
/// Those of `fill`, with the file named where it was taken for stdout; [`RunError::Io`].
pub fn put<T>(path: &Path, fill: impl FnOnce(&mut File) -> Result<T, Error>) -> Result<T, Error> {
    if is_written_in_place(path) {
        let mut file = File::create(path).map_err(Error::io(path, "create"))?;
        return fill(&mut file).map_err(|error| named(path, error));
    }
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut partial = place.clone().into_os_string();
    partial.push(format!(".{}.partial", std::process::id()));
    let mut file = create_anew(Path::new(&partial)).map_err(Error::io(path, "create"))?;
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

/// Until the value is dropped, Ctrl-C removes partial files beside `out` and `out` itself, which
/// serves only the command that makes it.
#[must_use]
pub fn cleared_up_beside(out: PathBuf) -> interrupt::CleanupScope {
    interrupt::scoped(move || {
        remove_begun(&out);
        let _ = fs::remove_file(&out);
    })
}

fn remove_begun(out: &Path) {
    let Some(name) = out.file_name() else { return };
    let begun = format!("{}.{}.", name.to_string_lossy(), std::process::id());
    // What cannot be listed or removed stays: nobody is left to be told of an error.
    for entry in fs::read_dir(above(out)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begun) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// What writes rows speaks of stdout; here it was this file.
fn named(path: &Path, error: Error) -> Error {
    match error {
        Error::Run(RunError::Output { source }) => Error::io(path, "write")(source),
        other => other,
    }
}
