//! The files in folders that are named as inputs, as Spark, Hive and pyarrow write them. Opens none
//! of them.

use std::fs;
use std::path::Path;

use crate::error::Error;
use crate::input::remote::is_remote;

/// Folders within folders that are looked through; links may lead in circles.
const DEPTH: usize = 32;

/// The files that `inputs` name: themselves, and in place of a folder the files in it and below, in
/// the order of their names.
///
/// Marks such as `_SUCCESS` and hidden files do not count; named one by one, as a shell does for
/// `FOLDER/*`, they do not count where they are empty and something else is named. A folder that
/// holds prepared data stays.
///
/// # Errors
/// [`Error::Open`]; [`Error::EmptyFolder`] for a folder without a file.
pub fn expand_folders(inputs: &[String]) -> Result<Vec<String>, Error> {
    let mut files = Vec::with_capacity(inputs.len());
    for input in inputs {
        let path = Path::new(input);
        if is_remote(input) || !path.is_dir() {
            let is_empty =
                || fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == 0);
            if inputs.len() == 1 || !is_mark(path) || !is_empty() {
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
        if !is_mark(&path) {
            paths.push(path);
        }
    }
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

/// Whether a name is that of a mark or of a hidden file: `_SUCCESS`, `.part-0.crc`.
fn is_mark(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    // A folder such as _year=2024 names a column.
    name.starts_with('.') || name.starts_with('_') && !name.contains('=')
}
