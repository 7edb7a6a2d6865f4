//! Which checkpoint is meant: the folder itself, or the newest whole one of a run.

use std::path::{Path, PathBuf};

use train::checkpoint::{self, Checkpoint};

use crate::error::Error;
use crate::render::Console;

const MANIFEST: &str = "manifest.json";

/// The checkpoint folder at `path`, or the newest good one of the run folder `path`.
///
/// Damaged ones that are newer are named on stderr.
pub fn find(path: &Path, console: Console) -> Result<PathBuf, Error> {
    if path.join(MANIFEST).exists() {
        return Ok(path.to_owned());
    }
    if !path.exists() {
        return Err(Error::NoSuchInput { path: path.to_owned() });
    }
    if !path.is_dir() {
        return Err(Error::NoCheckpoint { path: path.to_owned() });
    }
    let found = checkpoint::newest_good(path)?;
    for (folder, damage) in &found.refused {
        console.warn(format_args!("{} is damaged, passed over: {damage}", folder.display()));
    }
    match found.checkpoint {
        Some(good) => Ok(good.folder().to_owned()),
        None if found.refused.is_empty() => Err(Error::NoCheckpoint { path: path.to_owned() }),
        None => Err(Error::NoneWhole { path: path.to_owned(), count: found.refused.len() }),
    }
}

/// As [`find`]; refuses a checkpoint that does not know how to read rows.
pub fn find_for_rows(path: &Path, console: Console) -> Result<PathBuf, Error> {
    let folder = find(path, console)?;
    if Checkpoint::open(&folder)?.manifest().fitted.is_null() {
        return Err(Error::NoTransforms { path: folder });
    }
    Ok(folder)
}

/// The checkpoints at `path`: itself, or all of the run folder `path`, oldest first.
pub fn all(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.join(MANIFEST).exists() {
        return Ok(vec![path.to_owned()]);
    }
    if !path.exists() {
        return Err(Error::NoSuchInput { path: path.to_owned() });
    }
    let folders = if path.is_dir() { checkpoint::list(path)? } else { Vec::new() };
    if folders.is_empty() {
        return Err(Error::NoCheckpoint { path: path.to_owned() });
    }
    Ok(folders)
}

/// The run folder of a checkpoint folder `<run>/checkpoints/step-…`.
pub fn run_of(checkpoint: &Path) -> Option<PathBuf> {
    let checkpoints = checkpoint.parent()?;
    (checkpoints.file_name()? == "checkpoints").then(|| checkpoints.parent().map(Path::to_owned))?
}

/// Refuses to resume a run whose newest checkpoint is damaged; names damage and the one before.
pub fn check_newest(run: &Path) -> Result<(), Error> {
    let Some(newest) = checkpoint::list(run)?.pop() else { return Ok(()) };
    let Some(reason) = damage(&newest) else { return Ok(()) };
    let previous = checkpoint::previous_good(&newest)?;
    Err(Error::DamagedCheckpoint { path: newest, reason, previous })
}

/// What is wrong with a checkpoint, if anything.
pub fn damage(folder: &Path) -> Option<String> {
    match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint.verify().first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    }
}

/// Makes `chosen` the newest checkpoint of `run`: later ones are renamed `….aside`. Returns those.
pub fn set_later_aside(run: &Path, chosen: &Path) -> Result<Vec<PathBuf>, Error> {
    let folders = checkpoint::list(run)?;
    let whole = std::fs::canonicalize(chosen).map_err(Error::io(chosen, "open"))?;
    let is_chosen =
        |folder: &PathBuf| std::fs::canonicalize(folder).is_ok_and(|path| path == whole);
    let Some(position) = folders.iter().position(is_chosen) else {
        let names = folders.iter().filter_map(|folder| folder.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned()).collect();
        return Err(Error::NotOfRun { path: chosen.to_owned(), run: run.to_owned(), names });
    };
    if let Some(reason) = damage(&folders[position]) {
        let previous = checkpoint::previous_good(&folders[position])?;
        return Err(Error::DamagedCheckpoint { path: chosen.to_owned(), reason, previous });
    }
    let mut moved = Vec::new();
    for folder in &folders[position + 1..] {
        let aside = unused_aside(folder);
        std::fs::rename(folder, &aside).map_err(Error::io(folder, "rename"))?;
        moved.push(aside);
    }
    Ok(moved)
}

fn unused_aside(folder: &Path) -> PathBuf {
    let name = |suffix: String| {
        let mut name = folder.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let mut candidates = (1..).map(|n: u32| name(format!(".aside-{n}")));
    candidates.find(|path| !path.exists()).unwrap_or_else(|| name(".aside".to_owned()))
}
