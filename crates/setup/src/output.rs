//! Writes output files and folders. A file appears only when it is complete, and replaces an older
//! file at that moment. Pipes and devices cannot be replaced and are written in place. Commands
//! check their outputs before they start, so that an hour of work does not end at a folder that is
//! not writable.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use serde::Serialize;
use trace::file::create_anew;

use crate::args::OutputPath;
use crate::error::{Error, RunError, UsageError};
use crate::interrupt;

/// Checks, without writing, that all outputs of a command can be written.
///
/// # Errors
/// Returns an error for the first output that cannot be written, with the reason.
pub fn check_all(outputs: &[OutputPath]) -> Result<(), Error> {
    outputs.iter().try_for_each(|output| match output {
        OutputPath::File(path) => check(path),
        OutputPath::RegularFile(path) if !path.is_dir() && is_written_in_place(path) => {
            Err(RunError::OutputIsSpecial { path: path.clone() }.into())
        }
        OutputPath::RegularFile(path) => check(path),
        OutputPath::FolderBelow(path) if !path.exists() => check_folder(above(path), path),
        OutputPath::Folder(path) | OutputPath::FolderBelow(path) => check_new_folder(path),
    })
}

/// Checks that no two outputs are one file, and that none is a file that the command reads. Pipes
/// and devices may be given twice.
///
/// # Errors
/// [`UsageError::SameOutput`] and [`UsageError::OutputIsInput`] name the file.
pub fn check_different(inputs: &[PathBuf], outputs: &[OutputPath]) -> Result<(), UsageError> {
    let files = outputs.iter().filter_map(|output| match output {
        OutputPath::File(path) | OutputPath::RegularFile(path) => Some(path),
        OutputPath::Folder(_) | OutputPath::FolderBelow(_) => None,
    });
    let inputs: Vec<PathBuf> =
        inputs.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let mut seen = Vec::new();
    for path in files.filter(|path| !is_written_in_place(path)) {
        let place = fs::canonicalize(path).unwrap_or_else(|_| {
            let folder = fs::canonicalize(above(path)).unwrap_or_default();
            folder.join(path.file_name().unwrap_or_default())
        });
        if inputs.contains(&place) {
            return Err(UsageError::OutputIsInput { path: path.clone() });
        }
        if seen.contains(&place) {
            return Err(UsageError::SameOutput { path: path.clone() });
        }
        seen.push(place);
    }
    Ok(())
}

/// Checks that the file `path` can be written: its folder exists and is writable, and an existing
/// file of that name can be replaced. A full disk is detected only when the file is written.
///
/// # Errors
/// Returns an error with the folder, the file or the permission that prevents it.
fn check(path: &Path) -> Result<(), Error> {
    if path == Path::new("-") {
        return Err(UsageError::OutputIsDash.into());
    }
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

/// Checks, without writing, that the folder `path` can be created, or is writable if it exists.
///
/// # Errors
/// Returns an error if the nearest existing folder above `path` is not writable.
fn check_new_folder(path: &Path) -> Result<(), Error> {
    let standing = path.ancestors().find(|folder| fs::symlink_metadata(shown(folder)).is_ok());
    check_folder(shown(standing.unwrap_or(Path::new("."))), path)
}

/// Creates the folder `path` and its parents if they do not exist.
///
/// # Errors
/// Returns an error if the folder cannot be created or is not writable.
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
            // The folder may exist by now, for a path such as `a/../b`, or because another command
            // created it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => return Err(Error::io(path, "create")(error)),
        }
    }
    Ok(made)
}

/// Folders that a command created. When this value is dropped, or at Ctrl-C, the empty ones are
/// removed. A command that failed therefore leaves no empty folders.
#[derive(Debug)]
pub struct NewFolder {
    /// The created folders, from the outermost to the innermost.
    made: Vec<PathBuf>,
    _interrupted: interrupt::CleanupScope,
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        remove_empty(&self.made);
    }
}

/// Removes the folders that are empty. `folders` lists them from the outermost to the innermost.
fn remove_empty(folders: &[PathBuf]) {
    if let Some(innermost) = folders.last() {
        prune(innermost);
    }
    for folder in folders.iter().rev() {
        // `remove_dir` fails on folders that contain files, and these folders are kept.
        let _ = fs::remove_dir(folder);
    }
}

/// Removes a folder if it and its subfolders contain only empty files, such as locks and markers.
/// Returns whether the folder was removed.
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
        // If a file cannot be removed, the removal of the folder below fails too.
        empty.iter().for_each(|path| drop(fs::remove_file(path)));
    }
    !has_content && fs::remove_dir(folder).is_ok()
}

/// Returns whether `path` is a pipe or a device. `/dev/stdout` may lead to one that has no path of
/// its own.
fn is_written_in_place(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|standing| !standing.is_file())
}

/// Returns whether another command holds the lock file `path`.
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

/// Returns the folder that contains a path, which is `.` for a bare name.
fn above(path: &Path) -> &Path {
    path.parent().map_or(Path::new("/"), shown)
}

fn shown(folder: &Path) -> &Path {
    if folder == Path::new("") { Path::new(".") } else { folder }
}

/// Writes a value as indented JSON.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn put_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    put(path, |file| file.write_all(text.as_bytes()).map_err(Error::io(path, "write")))
}

/// Writes the file `path` with `fill`. If that fails, no partial file is left.
///
/// # Errors
/// [`RunError::Io`], or the errors of `fill`. If `fill` reports an error of standard output, `path`
/// replaces it.
pub fn put<T>(path: &Path, fill: impl FnOnce(&mut File) -> Result<T, Error>) -> Result<T, Error> {
    let (mut fill, mut value) = (Some(fill), None);
    put_file(path, &mut |file| {
        value = fill.take().map(|fill| fill(file)).transpose()?;
        Ok(())
    })?;
    value.ok_or_else(|| Error::io(path, "write")(io::Error::other("the file was not filled")))
}

/// Does the work of [`put`]. This part is compiled once and not for each `fill`.
fn put_file(
    path: &Path,
    fill: &mut dyn FnMut(&mut File) -> Result<(), Error>,
) -> Result<(), Error> {
    if is_written_in_place(path) {
        let mut file = File::create(path).map_err(Error::io(path, "create"))?;
        return fill(&mut file).map_err(|error| named(path, error));
    }
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut partial = place.clone().into_os_string();
    partial.push(format!(".{}.partial", std::process::id()));
    let mut file = create_anew(Path::new(&partial)).map_err(Error::io(path, "create"))?;
    let filled = fill(&mut file).map_err(|error| named(path, error)).and_then(|()| {
        file.sync_all().map_err(Error::io(path, "sync"))?;
        fs::rename(&partial, &place).map_err(Error::io(path, "write"))
    });
    if filled.is_err() {
        // The first error is reported, even if the removal of the partial file fails too.
        let _ = fs::remove_file(&partial);
    }
    filled
}

/// Makes Ctrl-C remove the partial files of `outs` for the rest of the process. Partial files are
/// named `OUT.PID.…`, both by [`put`] and by library crates that write files themselves.
pub fn clear_up_beside(outs: Vec<PathBuf>) {
    interrupt::clear_up(move || outs.iter().for_each(|out| remove_begun(out)));
}

/// Makes Ctrl-C remove `out` and its partial files until the returned value is dropped. This
/// function is meant for files that only the running command needs.
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
    // Errors are ignored, because the process ends and nobody could act on them.
    for entry in fs::read_dir(above(out)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begun) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Replaces standard output by `path` in an error of code that writes rows to either of them.
fn named(path: &Path, error: Error) -> Error {
    match error {
        Error::Run(RunError::Output { source }) => Error::io(path, "write")(source),
        other => other,
    }
}
