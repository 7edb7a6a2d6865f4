//! Finds the checkpoint that a path selects. The path is a checkpoint folder or a run folder. A run
//! folder selects the run's best checkpoint, or otherwise its newest undamaged one.

use std::path::{Path, PathBuf};

use data::Fitted;
use train::checkpoint::{self, Checkpoint};

use crate::error::{Error, RunError, UsageError};
use crate::render::Console;

const MANIFEST: &str = "manifest.json";

/// Finds the checkpoint folder at `path`. In a run folder, this checkpoint is the best one if the
/// run keeps one, and otherwise the newest undamaged one. Damaged checkpoints are named on stderr.
///
/// # Errors
/// Returns an error if `path` does not exist or has no undamaged checkpoint.
pub fn find(path: &Path, console: Console) -> Result<PathBuf, Error> {
    if path.join(MANIFEST).exists() {
        return Ok(path.to_owned());
    }
    if !path.exists() {
        return Err(UsageError::NoSuchInput { path: path.to_owned() }.into());
    }
    if !path.is_dir() {
        return Err(RunError::NoCheckpoint { path: path.to_owned() }.into());
    }
    if let Some(best) = checkpoint::best(path) {
        match damage(&best) {
            None => {
                console.say(format_args!("using the best checkpoint, {}", best.display()));
                return Ok(best);
            }
            Some(damage) => console.warn(format_args!(
                "the best checkpoint {} is damaged, passed over: {damage}",
                best.display()
            )),
        }
    }
    let found = checkpoint::newest_good(path)?;
    for (folder, damage) in &found.refused {
        console.warn(format_args!("{} is damaged, passed over: {damage}", folder.display()));
    }
    match found.checkpoint {
        Some(good) => Ok(good.folder().to_owned()),
        None if found.refused.is_empty() => {
            Err(RunError::NoCheckpoint { path: path.to_owned() }.into())
        }
        None => {
            Err(RunError::NoneWhole { path: path.to_owned(), count: found.refused.len() }.into())
        }
    }
}

/// Finds a checkpoint as [`find`] does, and rejects one that lacks the transforms of its rows.
pub fn find_for_rows(path: &Path, console: Console) -> Result<PathBuf, Error> {
    check_reads_rows(find(path, console)?)
}

/// Checkpoints of a run up to this size are verified before they are mapped into memory, which
/// takes about 10 ms. In larger checkpoints, each row is verified when it is looked up.
const VERIFIED_BYTES: u64 = 64 << 20;

/// Finds a checkpoint as [`find_for_rows`] does, but does not verify the whole of a large
/// checkpoint.
pub fn find_to_map(path: &Path, console: Console) -> Result<PathBuf, Error> {
    let is_run = path.is_dir() && !path.join(MANIFEST).exists();
    if is_run {
        let newest = || checkpoint::list(path).ok().and_then(|mut all| all.pop());
        let first = checkpoint::best(path).or_else(newest);
        let opened = first.and_then(|folder| Checkpoint::open(&folder).ok());
        if let Some(large) = opened.filter(|checkpoint| checkpoint.bytes() > VERIFIED_BYTES) {
            return check_reads_rows(large.folder().to_owned());
        }
    }
    find_for_rows(path, console)
}

fn check_reads_rows(folder: PathBuf) -> Result<PathBuf, Error> {
    let checkpoint = Checkpoint::open(&folder)?;
    let is_unknown = checkpoint.manifest().fitted.is_null();
    if is_unknown && Fitted::without_data(&checkpoint.config().data).is_none() {
        return Err(UsageError::NoTransforms { path: folder }.into());
    }
    Ok(folder)
}

/// Lists the checkpoints at `path`: the folder itself if it is a checkpoint, or all checkpoints of
/// a run folder, oldest first.
pub fn all(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.join(MANIFEST).exists() {
        return Ok(vec![path.to_owned()]);
    }
    if !path.exists() {
        return Err(UsageError::NoSuchInput { path: path.to_owned() }.into());
    }
    let folders = if path.is_dir() { checkpoint::list(path)? } else { Vec::new() };
    if folders.is_empty() {
        return Err(RunError::NoCheckpoint { path: path.to_owned() }.into());
    }
    Ok(folders)
}

/// Returns the run folder of the checkpoint folder `<run>/checkpoints/step-…`.
pub fn run_of(checkpoint: &Path) -> Option<PathBuf> {
    let checkpoints = checkpoint.parent()?;
    (checkpoints.file_name()? == "checkpoints").then(|| checkpoints.parent().map(Path::to_owned))?
}

/// Rejects a run whose newest checkpoint is damaged, before it is resumed. The error names the
/// damage and the previous undamaged checkpoint.
pub fn check_newest(run: &Path) -> Result<(), Error> {
    let Some(newest) = checkpoint::list(run)?.pop() else { return Ok(()) };
    let Some(reason) = damage(&newest) else { return Ok(()) };
    let previous = checkpoint::previous_good(&newest)?;
    Err(RunError::DamagedCheckpoint { path: newest, reason, previous }.into())
}

/// Describes the damage of a checkpoint, or returns `None` if it is undamaged.
pub fn damage(folder: &Path) -> Option<String> {
    match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint.verify().first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    }
}

/// Rejects resuming `run` from a checkpoint that is damaged or belongs to another run.
pub fn check_chosen(run: &Path, chosen: &Path) -> Result<(), Error> {
    let folders = checkpoint::list(run)?;
    let whole = std::fs::canonicalize(chosen).map_err(Error::io(chosen, "open"))?;
    let is_chosen =
        |folder: &&PathBuf| std::fs::canonicalize(folder).is_ok_and(|path| path == whole);
    let Some(folder) = folders.iter().find(is_chosen) else {
        let names = folders.iter().filter_map(|folder| folder.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned()).collect();
        return Err(
            UsageError::NotOfRun { path: chosen.to_owned(), run: run.to_owned(), names }.into()
        );
    };
    let Some(reason) = damage(folder) else { return Ok(()) };
    let previous = checkpoint::previous_good(folder)?;
    Err(RunError::DamagedCheckpoint { path: chosen.to_owned(), reason, previous }.into())
}
