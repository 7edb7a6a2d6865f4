//! The files under paths: folders to all levels, in the order of names, hidden ones left out.
//!
//! Knows names only, not contents.

use std::fs;
use std::path::{Path, PathBuf};

use super::pump;
use super::request::{ReadRequest, Skipped};
use crate::Error;
use crate::format::TIMELINES;

/// A file to be read.
#[derive(Clone, Debug)]
pub struct ListedFile {
    /// The file; `-` for standard input.
    pub path: PathBuf,
    /// Which of the request's paths it lies under.
    pub request: usize,
    /// Whether the request names it itself.
    pub by: By,
    /// Bytes, compressed; none where that is unknown.
    pub bytes: Option<u64>,
}

/// How a file came to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The request names it: if it is no trace, that is an error.
    Name,
    /// It lies in a folder: if it is no trace, it is left out.
    Folder,
}

/// The files to be read and those left out for their names.
#[derive(Debug, Default)]
pub struct TraceFiles {
    /// In the order of the request, then of names.
    pub units: Vec<ListedFile>,
    /// Left out.
    pub skipped: Vec<(usize, Skipped)>,
}

/// Finds the files under the request's paths.
///
/// # Errors
/// [`Error::Read`] where a path is missing or a folder cannot be read.
pub fn files(request: &ReadRequest, wanted: fn(&str) -> bool) -> Result<TraceFiles, Error> {
    let mut found = TraceFiles::default();
    for (request, path) in request.paths.iter().enumerate() {
        if path == Path::new("-") {
            found.units.push(ListedFile { path: path.clone(), request, by: By::Name, bytes: None });
            continue;
        }
        let metadata = fs::metadata(path).map_err(Error::read(path))?;
        if metadata.is_dir() {
            found.folder(path, request, wanted)?;
        } else {
            let bytes = metadata.is_file().then_some(metadata.len());
            found.units.push(ListedFile { path: path.clone(), request, by: By::Name, bytes });
        }
    }
    Ok(found)
}

/// Whether a timeline, or an archive of some, may have this name.
pub fn may_be_timeline(name: &str) -> bool {
    TIMELINES.iter().any(|format| has_ending(name, format.endings))
}

/// Whether a file whose name has one of `endings`, or an archive of some, may have this name.
pub fn has_ending(name: &str, endings: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    let packed = [".gz", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end));
    let name = packed.unwrap_or(&name);
    [".tar", ".tgz", ".tzst"].iter().chain(endings).any(|end| name.ends_with(end))
}

impl TraceFiles {
    fn folder(
        &mut self,
        folder: &Path,
        request: usize,
        wanted: fn(&str) -> bool,
    ) -> Result<(), Error> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder).map_err(Error::read(folder))? {
            entries.push(entry.map_err(Error::read(folder))?);
        }
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if pump::is_hidden(&name) {
                continue;
            }
            let mut skip = |reason: &str| {
                let skipped = Skipped {
                    path: path.clone(),
                    member: None,
                    reason: reason.to_owned(),
                    is_lost: false,
                };
                self.skipped.push((request, skipped));
            };
            let is_link = entry.file_type().map_err(Error::read(&path))?.is_symlink();
            let Ok(metadata) = fs::metadata(&path) else {
                skip("a link to nothing");
                continue;
            };
            if metadata.is_dir() && is_link {
                // It may lead back up.
                skip("a link to a folder");
            } else if metadata.is_dir() {
                self.folder(&path, request, wanted)?;
            } else if !metadata.is_file() {
                skip("no regular file");
            } else if !wanted(&name) {
                skip("another name than traces have");
            } else {
                let bytes = Some(metadata.len());
                self.units.push(ListedFile { path, request, by: By::Folder, bytes });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::may_be_timeline;

    #[test]
    fn names_of_traces_and_archives() {
        for name in ["a.json", "a.pt.trace.JSON.gz", "a.json.zst", "a.tgz", "a.tar.zst", "x.tar"] {
            assert!(may_be_timeline(name), "{name}");
        }
        for name in ["a.txt", "a.json.tmp", "json", "a.csv.gz", "a.et"] {
            assert!(!may_be_timeline(name), "{name}");
        }
    }
}
