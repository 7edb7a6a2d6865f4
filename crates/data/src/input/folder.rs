//! Expands folders that are named as inputs into their files, laid out as Spark, Hive and pyarrow
//! write them. This module does not open files.

use std::fs;
use std::path::Path;

use crate::error::Error;
use crate::input::remote::is_remote;

/// Largest depth of nested folders that is followed, because symbolic links may form cycles.
const DEPTH: usize = 32;

/// Replaces every folder among `inputs` by the files in it and below, sorted by name. Files stay as
/// they are.
///
/// Marker files such as `_SUCCESS` and hidden files are skipped. If such a file is named directly,
/// as a shell does for `FOLDER/*`, it is skipped only if it is empty and other inputs are named
/// too. A folder with a prepared dataset is kept as it is.
///
/// # Errors
/// Returns [`Error::Open`], or [`Error::EmptyFolder`] for a folder without files.
pub fn expand_folders(inputs: &[String]) -> Result<Vec<String>, Error> {
    let mut files = Vec::with_capacity(inputs.len());
    for input in inputs {
        let path = Path::new(input);
        if is_remote(input) || !path.is_dir() {
            let is_empty =
                || fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == 0);
            if inputs.len() == 1 || !is_marker(path) || !is_empty() {
                files.push(input.clone());
            }
        } else if path.join("dataset.json").exists() {
            files.push(input.clone());
        } else {
            let before = files.len();
            add_files(path, &mut files, DEPTH)?;
            if files.len() == before {
                return Err(Error::EmptyFolder { path: path.to_owned() });
            }
        }
    }
    Ok(files)
}

fn add_files(folder: &Path, files: &mut Vec<String>, depth: usize) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(Error::open(folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::open(folder))?.path();
        if !is_marker(&path) {
            paths.push(path);
        }
    }
    // A file system lists files in any order, but the rows must always have the same order.
    paths.sort();
    for path in paths {
        match path.is_dir() {
            true if depth > 0 => add_files(&path, files, depth - 1)?,
            true => {}
            false => files.push(path.display().to_string()),
        }
    }
    Ok(())
}

/// Whether a name is that of a marker or of a hidden file, such as `_SUCCESS` or `.part-0.crc`.
fn is_marker(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    // A folder such as _year=2024 names a column.
    name.starts_with('.') || name.starts_with('_') && !name.contains('=')
}
