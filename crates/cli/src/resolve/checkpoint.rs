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
    let found = checkpoint::newest_good(path)?;
    for (folder, damage) in &found.refused {
        console.warn(format_args!("{} is damaged, passed over: {damage}", folder.display()));
    }
    match found.checkpoint {
        Some(good) => Ok(good.folder().to_owned()),
        None => Err(Error::NoCheckpoint { path: path.to_owned() }),
    }
}

/// The checkpoints at `path`: itself, or all of the run folder `path`, oldest first.
pub fn all(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.join(MANIFEST).exists() {
        return Ok(vec![path.to_owned()]);
    }
    if !path.exists() {
        return Err(Error::NoSuchInput { path: path.to_owned() });
    }
    let folders = checkpoint::list(path)?;
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
    let name = chosen.file_name();
    let Some(position) = folders.iter().position(|folder| folder.file_name() == name) else {
        return Err(Error::NoCheckpoint { path: chosen.to_owned() });
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
