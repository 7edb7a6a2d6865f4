//! Finds data that was prepared earlier, if the input files still have the same content.
//!
//! The file `<folder>.inputs.json` next to each prepared folder records the inputs of that folder.
//! Changed inputs are prepared into a new folder, because a run may still read the earlier one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use data::InputOrigin;
use data::checksum::{self, Seal};
use serde::{Deserialize, Serialize};

use crate::Session;
use crate::error::Error;
use crate::progress::{Meter, ProgressUnit};

/// The folder of prepared rows for the given input files.
pub enum PreparedFolder {
    /// The folder already contains the rows of these inputs.
    Same(PathBuf),
    /// No folder contains the rows of these inputs. The rows can be prepared into the given folder,
    /// which is free.
    None(PathBuf),
}

/// The content of the file `<folder>.inputs.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Inputs {
    version: u32,
    files: Vec<InputOrigin>,
}

const VERSION: u32 = 1;

/// Searches for the rows of `files` in `folder`, and then in `folder-2`, `folder-3`, …
///
/// A file is read and hashed, with a progress bar, unless its size and timestamps prove that it is
/// unchanged.
pub fn find(session: &Session, folder: &Path, files: &[String]) -> Result<PreparedFolder, Error> {
    let mut now = Now { session, files, origins: BTreeMap::new() };
    for number in 1_u32.. {
        let folder = if number == 1 { folder.to_owned() } else { suffixed(folder, number) };
        if !folder.join("dataset.json").exists() {
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(Error::io(&folder, "remove"))?;
            }
            return Ok(PreparedFolder::None(folder));
        }
        let recorded = read(&folder).filter(|recorded| is_of(recorded, files));
        if let Some(recorded) = recorded
            && now.have_content_of(&folder, recorded)?
        {
            return Ok(PreparedFolder::Same(folder));
        }
    }
    Ok(PreparedFolder::None(suffixed(folder, 0)))
}

/// Records the inputs of `folder`. If one of the inputs was a stream, nothing is recorded, because
/// a stream cannot be compared later.
pub fn record(folder: &Path, files: &[String], origins: Vec<InputOrigin>) -> Result<(), Error> {
    let inputs = Inputs { version: VERSION, files: in_order(files, origins) };
    if is_of(&inputs, files) { write(folder, &inputs) } else { Ok(()) }
}

fn in_order(files: &[String], origins: Vec<InputOrigin>) -> Vec<InputOrigin> {
    let by_path: BTreeMap<_, _> =
        origins.into_iter().map(|origin| (whole_path(&origin.path), origin)).collect();
    files.iter().filter_map(|file| by_path.get(&whole_path(file)).cloned()).collect()
}

fn whole_path(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

fn is_of(inputs: &Inputs, files: &[String]) -> bool {
    let pairs = || inputs.files.iter().zip(files);
    inputs.version == VERSION
        && inputs.files.len() == files.len()
        && pairs().all(|(origin, file)| whole_path(&origin.path) == whole_path(file))
}

/// The current content of the input files. Each file is hashed when its hash is first needed.
struct Now<'a> {
    session: &'a Session,
    files: &'a [String],
    /// The inputs that were already hashed, by path.
    origins: BTreeMap<String, InputOrigin>,
}

impl Now<'_> {
    /// Returns whether every file has the content that it had when `folder` was prepared. Records
    /// the current files, so that the next run does not have to hash them again.
    fn have_content_of(&mut self, folder: &Path, recorded: Inputs) -> Result<bool, Error> {
        let mut files = Vec::with_capacity(recorded.files.len());
        let mut read = false;
        for origin in recorded.files {
            if origin.is_untouched() {
                files.push(origin);
                continue;
            }
            let length = std::fs::metadata(&origin.path).map_or(0, |about| about.len());
            if length != origin.bytes() {
                return Ok(false);
            }
            let Some(now) = self.read(&origin.path)? else { return Ok(false) };
            if !now.has_content_of(&origin) {
                return Ok(false);
            }
            files.push(now);
            read = true;
        }
        if read {
            // If the record cannot be written, the prepared rows are still usable.
            let _ = write(folder, &Inputs { version: VERSION, files });
        }
        Ok(true)
    }

    fn read(&mut self, path: &str) -> Result<Option<InputOrigin>, Error> {
        if let Some(origin) = self.origins.get(path) {
            return Ok(Some(origin.clone()));
        }
        let total = std::fs::metadata(path).map(|about| about.len()).ok();
        let what = if self.files.len() > 1 { "comparing inputs" } else { "comparing the input" };
        let mut meter = Meter::start(self.session.console, what, ProgressUnit::Bytes, total);
        let origin = InputOrigin::read(path, &mut |bytes| meter.advance(bytes, ""))?;
        meter.finish();
        if let Some(origin) = &origin {
            self.origins.insert(path.to_owned(), origin.clone());
        }
        Ok(origin)
    }
}

fn read(folder: &Path) -> Option<Inputs> {
    let text = std::fs::read(record_of(folder)).ok()?;
    (checksum::check(&text) == Seal::Whole).then(|| serde_json::from_slice(&text).ok())?
}

fn write(folder: &Path, inputs: &Inputs) -> Result<(), Error> {
    let path = record_of(folder);
    let text = checksum::sealed(inputs)?;
    crate::output::put(&path, |file| {
        std::io::Write::write_all(file, &text).map_err(Error::io(&path, "write"))
    })
}

fn record_of(folder: &Path) -> PathBuf {
    named(folder, ".inputs.json")
}

fn suffixed(folder: &Path, number: u32) -> PathBuf {
    named(folder, &format!("-{number}"))
}

fn named(folder: &Path, end: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(end);
    name.into()
}
