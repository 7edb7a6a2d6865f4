//! Lists the files under paths. Folders are searched recursively in the order of names, and hidden
//! files are skipped.
//!
//! Only file names decide which files are listed. The contents of files are not read here.

use std::fs;
use std::path::{Path, PathBuf};

use super::pump;
use super::request::{ReadRequest, Skipped};
use crate::Error;
use crate::format::TIMELINES;

/// A file to be read, and the reason why it was selected.
#[derive(Clone, Debug)]
pub struct ListedFile {
    pub path: PathBuf,
    /// Index of the path in the request under which the file was found.
    pub request: usize,
    pub by: By,
    /// Size on disk in bytes, or `None` if it is unknown.
    pub bytes: Option<u64>,
}

/// Tells how a file was selected, which decides what happens if it is not a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The request names the file, so reading fails if the file is not a trace.
    Name,
    /// The file is in a folder or an archive, so the file is skipped if it is not a trace.
    Folder,
}

/// The files to read, and the files that were skipped because of their names.
#[derive(Debug, Default)]
pub struct TraceFiles {
    /// Files in the order of the request's paths, and by name within a folder.
    pub units: Vec<ListedFile>,
    /// Skipped files, each with the index of the path in the request under which it was found.
    pub skipped: Vec<(usize, Skipped)>,
}

/// Lists the files under the request's paths.
///
/// # Errors
/// [`Error::Read`] if a path does not exist or a folder cannot be read.
pub fn files(request: &ReadRequest, wanted: fn(&str) -> bool) -> Result<TraceFiles, Error> {
    let mut files = TraceFiles::default();
    for (request, path) in request.paths.iter().enumerate() {
        if path == Path::new("-") {
            files.units.push(ListedFile { path: path.clone(), request, by: By::Name, bytes: None });
            continue;
        }
        let metadata = fs::metadata(path).map_err(Error::read(path))?;
        if metadata.is_dir() {
            files.folder(path, request, wanted)?;
        } else {
            let bytes = metadata.is_file().then_some(metadata.len());
            files.units.push(ListedFile { path: path.clone(), request, by: By::Name, bytes });
        }
    }
    Ok(files)
}

/// Whether a file with this name may be a timeline or an archive of timelines.
pub fn may_be_timeline(name: &str) -> bool {
    TIMELINES.iter().any(|format| has_extension(name, format.extensions))
}

/// Whether a name has one of the extensions, or is the name of an archive. The extension of a
/// compression, as in `a.json.gz`, is ignored.
pub fn has_extension(name: &str, extensions: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    // The extension of a compression is removed first, so that `a.json.gz` counts as `a.json`.
    let packed = [".gz", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end));
    let name = packed.unwrap_or(&name);
    [".tar", ".tgz", ".tzst"].iter().chain(extensions).any(|end| name.ends_with(end))
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
                skip("a broken link");
                continue;
            };
            if metadata.is_dir() && is_link {
                // A link to a folder is not followed, because it may lead back to a parent folder.
                skip("a link to a folder");
            } else if metadata.is_dir() {
                self.folder(&path, request, wanted)?;
            } else if !metadata.is_file() {
                skip("not a regular file");
            } else if !wanted(&name) {
                skip("not a trace by its name");
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
