//! Saves and restores the state of an interrupted preparation: the folder being built, the request
//! it belongs to, its finished parts, and the fitted state.
//!
//! Files get their final names only when they are complete, so that the state is consistent even if
//! the process is killed at any moment.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checksum::{self, Seal};
use crate::dataset::fitted::Fitted;
use crate::dataset::manifest::{DatasetPart, replace};
use crate::error::Error;
use crate::input::decompress::STDIN;
use crate::input::origin::{InputOrigin, InputOrigins};
use crate::input::remote::is_remote;
use crate::parse::format::input_files;
use crate::prepare::request::{Begin, PrepareRequest};
use crate::scan::limit::Strictness;
use crate::scan::resume_point::ResumePoint;

const STATE: &str = "progress.json";
const FITTED: &str = "fitted.json";
/// Version of the saved state, which is incremented when the same request would be prepared
/// differently.
const VERSION: u32 = 2;

/// The folder of an unfinished preparation and the rows that a new one can take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedPreparation {
    pub folder: PathBuf,
    pub rows: u64,
}

/// Finds an unfinished preparation into `out` with results that the next one can take over.
#[must_use]
pub fn find_unfinished(out: &Path) -> Option<UnfinishedPreparation> {
    let folder = staging_path(out);
    let state: SavedState = read::<Option<SavedState>>(&folder.join(STATE))??;
    let rows = state.parts.iter().map(|part| part.rows).sum();
    let has_fitted = folder.join(FITTED).exists();
    (rows > 0 || has_fitted).then_some(UnfinishedPreparation { folder, rows })
}

/// Removes everything that an unfinished preparation into `out` has written.
pub fn discard_unfinished(out: &Path) {
    // The removal is retried, because a thread may still be writing into the folder.
    for _ in 0..10 {
        if std::fs::remove_dir_all(staging_path(out)).is_ok() {
            return;
        }
    }
}

/// The folder in which a dataset is built before it is renamed. Dropping it removes the folder,
/// unless it holds results worth keeping.
pub(crate) struct StagingFolder {
    folder: PathBuf,
    /// Saved state; `None` if the preparation cannot be resumed.
    state: Option<SavedState>,
    origins: Arc<InputOrigins>,
    keep: bool,
}

/// The content of `progress.json`: the request to which the folder belongs, and the finished work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedState {
    version: u32,
    job: serde_json::Map<String, serde_json::Value>,
    parts: Vec<DatasetPart>,
    /// Identities of the inputs, with hashes of the bytes that were read.
    #[serde(default)]
    origins: Vec<InputOrigin>,
    /// Position in the inputs of the rows after the last part.
    #[serde(default)]
    mark: Option<ResumePoint>,
}

impl SavedState {
    /// Creates the state of a new preparation.
    fn new(job: serde_json::Map<String, serde_json::Value>) -> Self {
        Self { version: VERSION, job, parts: Vec::new(), origins: Vec::new(), mark: None }
    }

    /// Reads the saved state if its checksum is correct. State of an earlier version without a
    /// checksum is returned too, so that it is refused instead of lost.
    fn read(path: &Path) -> Option<Self> {
        let earlier = || {
            let left: Self = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
            (left.version < VERSION).then_some(left)
        };
        read(path).or_else(earlier)
    }
}

/// The content of the file `fitted.json`.
#[derive(Serialize, Deserialize)]
struct FittedFile<T> {
    fitted: T,
}

impl StagingFolder {
    /// Creates an empty folder for `out`.
    pub(crate) fn anew(out: &Path) -> Result<Self, Error> {
        let folder = staging_path(out);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(Error::write(&folder))?;
        }
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).map_err(Error::write(above))?;
        }
        // Creating the folder fails if another process has created it meanwhile.
        std::fs::create_dir(&folder).map_err(Error::write(&folder))?;
        Ok(Self { folder, state: None, origins: Arc::default(), keep: false })
    }

    /// Opens the folder for a request, with the results of an interrupted preparation of the same
    /// request.
    ///
    /// # Errors
    /// Returns [`Error::OtherPreparation`] if the results belong to another request, or
    /// [`Error::InputChanged`] if an input has changed.
    pub(crate) fn new(request: &PrepareRequest<'_>) -> Result<Self, Error> {
        // A stream cannot be read twice, so it cannot be resumed.
        let files = input_files(request.config.format, request.inputs)?;
        let is_stream =
            |file: &String| file == STDIN || !(is_remote(file) || Path::new(file).is_file());
        if files.iter().any(is_stream) {
            return Self::anew(request.out);
        }
        let job = describe_job(request)?;
        let folder = staging_path(request.out);
        let left: Option<SavedState> = match request.begin {
            Begin::Resume => SavedState::read(&folder.join(STATE)),
            Begin::Restart => None,
        };
        let Some(left) = left else {
            let mut staging = Self::anew(request.out)?;
            staging.state = Some(SavedState::new(job));
            staging.write_state()?;
            return Ok(staging);
        };
        let owner = std::fs::symlink_metadata(&folder).map_err(Error::open(&folder))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            // The state decides which rows count as prepared, so only our own user may have written
            // it.
            return Err(Error::OtherPreparation { folder, what: "owner".to_owned() });
        }
        let differs = |(key, value): (&String, _)| left.job.get(key) != Some(value);
        let other = job.iter().find(|&entry| differs(entry)).map(|(key, _)| key.clone());
        if let Some(what) = other.or((left.version != VERSION).then(|| "version".to_owned())) {
            return Err(Error::OtherPreparation { folder, what });
        }
        let rows: u64 = left.parts.iter().map(|part| part.rows).sum();
        let fits = |mark: &ResumePoint| mark.fits(request.inputs.len(), rows);
        let left = SavedState { mark: left.mark.filter(fits), ..left };
        let origins = Arc::new(InputOrigins::resumed(&left.origins, &folder)?);
        let staging = Self { folder, state: Some(left), origins, keep: true };
        staging.remove_unfinished()?;
        Ok(staging)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the record of inputs that reading adds to.
    pub(crate) fn origins(&self) -> &Arc<InputOrigins> {
        &self.origins
    }

    /// Returns the finished parts in order.
    pub(crate) fn parts(&self) -> &[DatasetPart] {
        self.state.as_ref().map_or(&[], |state| &state.parts)
    }

    /// Returns the position in the inputs of the rows after the finished parts; `None` for the
    /// beginning.
    pub(crate) fn resume_point(&self) -> Option<&ResumePoint> {
        self.state.as_ref().and_then(|state| state.mark.as_ref())
    }

    /// Returns the fitted state if fitting had finished.
    pub(crate) fn fitted(&self) -> Option<Fitted> {
        let saved = self.state.as_ref().and_then(|_| read(&self.folder.join(FITTED)));
        saved.map(|FittedFile { fitted }| fitted)
    }

    /// Saves the fitted state for a later preparation.
    pub(crate) fn keep_fitted(&mut self, fitted: &Fitted) -> Result<(), Error> {
        if self.state.is_some() {
            replace(&self.folder.join(FITTED), &FittedFile { fitted })?;
            self.write_state()?;
            self.keep = true;
        }
        Ok(())
    }

    /// Records a part that is on disk, and a position in the inputs at or before its end.
    pub(crate) fn keep_part(
        &mut self,
        part: &DatasetPart,
        mark: Option<&ResumePoint>,
    ) -> Result<(), Error> {
        if let Some(state) = &mut self.state {
            state.parts.push(part.clone());
            state.mark = mark.cloned();
            self.keep = true;
        }
        self.write_state()
    }

    /// Moves the finished folder to `out`.
    pub(crate) fn finish(mut self, out: &Path) -> Result<(), Error> {
        for name in [STATE, FITTED] {
            let path = self.folder.join(name);
            if path.exists() {
                std::fs::remove_file(&path).map_err(Error::write(&path))?;
            }
        }
        sync_folder(&self.folder)?;
        std::fs::rename(&self.folder, out).map_err(Error::write(out))?;
        self.keep = true;
        sync_folder(out.parent().unwrap_or(Path::new(".")))
    }

    fn write_state(&mut self) -> Result<(), Error> {
        let Some(state) = &mut self.state else { return Ok(()) };
        state.origins = self.origins.to_origins();
        replace(&self.folder.join(STATE), state)
    }

    fn remove_unfinished(&self) -> Result<(), Error> {
        let is_ours = |name: &str| {
            [STATE, FITTED].contains(&name) || self.parts().iter().any(|part| part.file == name)
        };
        for entry in std::fs::read_dir(&self.folder).map_err(Error::open(&self.folder))? {
            let path = entry.map_err(Error::read(&self.folder))?.path();
            if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_ours) {
                std::fs::remove_file(&path).map_err(Error::write(&path))?;
            }
        }
        Ok(())
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        if !self.keep {
            // A folder that cannot be removed is left behind, and its name shows that it is
            // unfinished.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Returns the folder beside `out` in which the dataset is built.
fn staging_path(out: &Path) -> PathBuf {
    // `components` removes a trailing slash. With the slash, `out/` would become `out/.partial`,
    // which lies inside the output folder.
    let mut name = out.components().collect::<PathBuf>().into_os_string();
    name.push(".partial");
    name.into()
}

/// Describes everything that the prepared bytes depend on.
fn describe_job(
    request: &PrepareRequest<'_>,
) -> Result<serde_json::Map<String, serde_json::Value>, Error> {
    let inputs = input_files(request.config.format, request.inputs)?;
    let fitted = request.fitted.map(serde_json::to_vec).transpose();
    let fitted = fitted.map_err(|error| Error::write(request.out)(error.into()))?;
    let value = serde_json::json!({
        "inputs": inputs,
        "configuration": request.config,
        "transforms": fitted.map(|json| xxhash_rust::xxh3::xxh3_64(&json)),
        "hold_out": request.hold_out,
        "row_group_rows": request.row_group_rows,
        "strictness": request.strictness == Strictness::Stop,
        "generator": request.generator,
    });
    match value {
        serde_json::Value::Object(job) => Ok(job),
        _ => Ok(serde_json::Map::new()),
    }
}

/// Parses a sealed file; `None` if it is missing or damaged.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read(path).ok()?;
    (checksum::check(&text) == Seal::Whole).then(|| serde_json::from_slice(&text).ok())?
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|file| file.sync_all()).map_err(Error::write(folder))
}
