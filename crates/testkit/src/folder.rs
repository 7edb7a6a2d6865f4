//! Temporary folders that tests write to.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary folder that only its owner may enter. The folder is removed when the value is
/// dropped.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// Creates an empty folder.
    #[expect(clippy::new_without_default, reason = "creating a folder is more than a default")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the path of the folder itself.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in the folder. The file may not exist yet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Writes a file, and creates its parent folders if they are missing. Returns the path of the
    /// file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Returns the sorted names of the entries that begin with `start`.
    pub fn names(&self, start: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(start)).collect();
        names.sort();
        names
    }
}
