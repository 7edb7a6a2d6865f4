//! Manages the folder of a run's checkpoints: lists them, finds the newest valid one, deletes old
//! ones.
//!
//! The functions work on names, and open checkpoints only to verify them. A name that ends in
//! `.tmp` is never a checkpoint: `step-N.tmp` is being written, `step-N.deleted.tmp` is being
//! deleted, and `step-N.replaced.tmp` is being replaced by a checkpoint of the same step.
//! `step-N.aside-1` is a complete checkpoint that an earlier run left behind. Runs neither resume
//! from it nor delete it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use trace::file::create_anew;

use super::Checkpoint;
use crate::Error;

const REPLACED: &str = ".replaced.tmp";
const DELETED: &str = ".deleted.tmp";
const ASIDE: &str = ".aside-";
/// The file that contains the name of a run's best checkpoint.
const BEST: &str = "best";

/// Returns the folder of a run's checkpoints, `<run>/checkpoints`.
pub(super) fn checkpoints(run_folder: &Path) -> PathBuf {
    run_folder.join("checkpoints")
}

/// Returns the name of the folder of the checkpoint of `step`.
pub(super) fn name(step: u64) -> String {
    format!("step-{step:012}")
}

/// Appends `.tmp` to the name of `path`, for a file or folder that is being written.
pub(super) fn temporary_name(path: &Path) -> PathBuf {
    suffixed(path, ".tmp")
}

/// Appends `suffix` to the name of `folder`.
fn suffixed(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates a folder with a temporary name. An existing folder is reused, but a symbolic link is
/// refused.
pub(super) fn create_temporary(folder: &Path) -> Result<(), Error> {
    let parent = folder.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let is_folder = || fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    match fs::create_dir(folder) {
        Err(error) if !is_folder() => Err(Error::io("create", folder)(error)),
        _ => Ok(()),
    }
}

/// Waits until the directory entries of `folder` are on disk.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(Error::io("sync", folder))
}

/// Lists the folders of a run's checkpoints, oldest first, without opening them.
///
/// # Errors
/// [`Error::Io`] names the folder that cannot be listed.
pub fn list(run_folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for path in entries(&checkpoints(run_folder))? {
        if let Some(step) = step_of(&path) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Lists the checkpoints of a run that were set aside, sorted by name.
///
/// # Errors
/// [`Error::Io`] names the folder that cannot be listed.
pub fn list_aside(run_folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = entries(&checkpoints(run_folder))?;
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("step-") && name.contains(ASIDE)
    });
    found.sort();
    Ok(found)
}

/// Sets aside the checkpoints of a run that are newer than `step`. A folder `step-N` is renamed to
/// `step-N.aside-1`, or to the first unused number. Returns each checkpoint's old and new folder.
///
/// The newest checkpoint is renamed last, so it is still the newest if the process dies halfway.
///
/// # Errors
/// [`Error::Io`] names the folder that cannot be renamed. All earlier renames are then undone.
pub(crate) fn set_aside_after(
    run_folder: &Path,
    step: u64,
) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let mut newer = list(run_folder)?;
    newer.retain(|path| step_of(path) > Some(step));
    let mut moved: Vec<(PathBuf, PathBuf)> = Vec::new();
    for from in newer {
        let to = unused_aside(&from);
        if let Err(source) = fs::rename(&from, &to) {
            for (from, to) in moved.iter().rev() {
                fs::rename(to, from).map_err(Error::io("rename", to))?;
            }
            return Err(Error::io("rename", &from)(source));
        }
        moved.push((from, to));
    }
    if !moved.is_empty() {
        sync_folder(&checkpoints(run_folder))?;
    }
    Ok(moved)
}

/// Returns the first unused name of the form `FOLDER.aside-N`.
fn unused_aside(folder: &Path) -> PathBuf {
    let mut number = 1u64;
    loop {
        let path = suffixed(folder, &format!("{ASIDE}{number}"));
        if !path.exists() {
            return path;
        }
        number += 1;
    }
}

/// The newest undamaged checkpoint of a run, and the damaged ones that were skipped to find it.
#[derive(Debug)]
pub struct NewestGood {
    /// The checkpoint, or `None` if the run has no undamaged one.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that are damaged, newest first, each with its damage.
    pub refused: Vec<(PathBuf, Error)>,
}

/// Finds the newest checkpoint of which every byte matches its checksum. The checkpoint is read
/// completely to find damage.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be listed. Damaged checkpoints are not errors but are
/// returned as `refused`.
pub fn newest_good(run_folder: &Path) -> Result<NewestGood, Error> {
    Ok(newest_good_of(list(run_folder)?))
}

/// Finds the newest undamaged checkpoint that is older than `folder`, a checkpoint of the same run.
///
/// # Errors
/// [`Error::Io`] if the run's folder cannot be listed.
pub fn previous_good(folder: &Path) -> Result<Option<PathBuf>, Error> {
    let run_folder = folder.parent().and_then(Path::parent);
    let (Some(run_folder), Some(step)) = (run_folder, step_of(folder)) else { return Ok(None) };
    let mut older = list(run_folder)?;
    older.retain(|path| step_of(path) < Some(step));
    Ok(newest_good_of(older).checkpoint.map(|checkpoint| checkpoint.folder().to_owned()))
}

fn newest_good_of(folders: Vec<PathBuf>) -> NewestGood {
    let mut refused = Vec::new();
    for folder in folders.into_iter().rev() {
        match Checkpoint::open(&folder) {
            Ok(checkpoint) => match checkpoint.first_damage() {
                Ok(()) => return NewestGood { checkpoint: Some(checkpoint), refused },
                Err(error) => refused.push((folder, error)),
            },
            Err(error) => refused.push((folder, error)),
        }
    }
    NewestGood { checkpoint: None, refused }
}

/// Returns the checkpoint with the run's best held-out metric, if the run keeps one.
#[must_use]
pub fn best(run_folder: &Path) -> Option<PathBuf> {
    let folder = checkpoints(run_folder);
    let name = fs::read_to_string(folder.join(BEST)).ok()?;
    let path = folder.join(name.trim());
    (step_of(&path).is_some() && path.is_dir()).then_some(path)
}

/// Records the checkpoint of `step` as the best one of a run. `None` removes the record.
///
/// # Errors
/// [`Error::Io`] names the file that cannot be written or removed.
pub(crate) fn set_best(run_folder: &Path, step: Option<u64>) -> Result<(), Error> {
    let folder = checkpoints(run_folder);
    let path = folder.join(BEST);
    let Some(step) = step else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path)(error))
            }
            _ => Ok(()),
        };
    };
    // Write a temporary file and rename it, so that a crash leaves the old record or the new one.
    let temporary = temporary_name(&path);
    let write = || {
        let mut file = create_anew(&temporary)?;
        writeln!(file, "{}", name(step))?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write().map_err(Error::io("write", &path))?;
    sync_folder(&folder)
}

/// Deletes all but the newest `keep` checkpoints and the best one, and returns the deleted folders.
/// Call it after a commit.
///
/// A folder is renamed before its files are deleted, so an interrupted deletion never looks like a
/// checkpoint.
///
/// # Errors
/// [`Error::Io`] names the folder that cannot be renamed or deleted.
pub fn retain(run_folder: &Path, keep: usize) -> Result<Vec<PathBuf>, Error> {
    let mut folders = list(run_folder)?;
    folders.truncate(folders.len().saturating_sub(keep.max(1)));
    let best = best(run_folder);
    folders.retain(|folder| Some(folder) != best.as_ref());
    for folder in &folders {
        let condemned = suffixed(folder, DELETED);
        fs::rename(folder, &condemned).map_err(Error::io("rename", folder))?;
        sync_folder(&checkpoints(run_folder))?;
        fs::remove_dir_all(&condemned).map_err(Error::io("delete", &condemned))?;
    }
    Ok(folders)
}

/// Removes the temporary folders of a writer that was killed. Only the process that writes to
/// `run_folder` may call it, because it would also remove a checkpoint that another process is
/// writing. [`super::CheckpointWriter::begin`] calls it.
///
/// # Errors
/// [`Error::Io`] names the folder that cannot be removed.
pub fn clean(run_folder: &Path) -> Result<(), Error> {
    for path in entries(&checkpoints(run_folder))? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("step-") || !name.ends_with(".tmp") {
            continue;
        }
        let original = name.strip_suffix(REPLACED).map(|name| path.with_file_name(name));
        match original {
            // The writer was killed between the two renames of `replace`, so restore the old
            // checkpoint.
            Some(original) if !original.exists() => {
                fs::rename(&path, &original).map_err(Error::io("rename", &path))?;
            }
            _ => fs::remove_dir_all(&path).map_err(Error::io("delete", &path))?,
        }
    }
    Ok(())
}

/// Renames `from` to `to`. An existing checkpoint at `to` is moved away first and deleted after the
/// rename.
pub(super) fn replace(from: &Path, to: &Path) -> Result<(), Error> {
    let aside = suffixed(to, REPLACED);
    let exists = to.exists();
    if exists {
        fs::rename(to, &aside).map_err(Error::io("rename", to))?;
    }
    fs::rename(from, to).map_err(Error::io("rename", from))?;
    if let Some(parent) = to.parent() {
        sync_folder(parent)?;
    }
    if exists {
        fs::remove_dir_all(&aside).map_err(Error::io("delete", &aside))?;
    }
    Ok(())
}

fn step_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix("step-")?;
    // Steps are padded to twelve digits. Shorter names are not checkpoints of rowmill.
    (digits.len() >= 12 && digits.bytes().all(|digit| digit.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", folder)(error)),
    };
    let paths = found.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(Error::io("list", folder))
}
