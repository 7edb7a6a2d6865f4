//! Reads the files of the repository as text by path, so that every rule can be tested on a few
//! lines of text. Only manifests are parsed here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Folders that are read in addition to the files at the root.
const FOLDERS: [&str; 8] =
    [".ci", ".cargo", "bench", "configs", "crates", "docs", "testdata", "xtask"];

/// Maximum size of a file whose text is read. Larger files are listed with empty text, because no
/// source is that large.
const LARGEST_TEXT_BYTES: u64 = 1 << 20;

/// The files of the repository. A path is relative to the root and uses `/`. Binary files have
/// empty text.
#[derive(Debug, Default)]
pub struct SourceTree {
    files: BTreeMap<String, String>,
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

impl SourceTree {
    /// Reads the files of the repository below `root`.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let mut tree = Self::default();
        for entry in entries(root)? {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if entry.is_dir() && FOLDERS.contains(&name.as_str()) {
                tree.read_folder(&entry, &name)?;
            } else if entry.is_file() {
                tree.read_file(&entry, name)?;
            }
        }
        Ok(tree)
    }

    /// Creates a tree from pairs of path and text.
    #[cfg(test)]
    pub fn new(files: &[(&str, &str)]) -> Self {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self { files: owned.collect() }
    }

    fn read_folder(&mut self, folder: &Path, name: &str) -> Result<(), Error> {
        for entry in entries(folder)? {
            let own = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let path = format!("{name}/{own}");
            if entry.is_file() {
                self.read_file(&entry, path)?;
            } else if entry.is_dir()
                // Hidden folders, build outputs and Python's `__pycache__` do not contain sources.
                && !own.starts_with('.')
                && own != "target"
                && !own.starts_with('_')
            {
                self.read_folder(&entry, &path)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, file: &Path, path: String) -> Result<(), Error> {
        let length = file.metadata().map_err(Error::io(file))?.len();
        let bytes = if length > LARGEST_TEXT_BYTES {
            Vec::new()
        } else {
            std::fs::read(file).map_err(Error::io(file))?
        };
        self.files.insert(path, String::from_utf8(bytes).unwrap_or_default());
        Ok(())
    }

    /// Returns path and text of every file, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns path and text of every Rust source.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Returns the text of one file, if the file exists.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns the folders of the workspace's packages: the folders directly below `crates/`, as in
    /// the manifest, and `xtask`.
    pub fn packages(&self) -> Vec<&str> {
        let manifests = self.files.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
        let is_crate =
            |folder: &str| folder.strip_prefix("crates/").is_some_and(|name| !name.contains('/'));
        manifests.filter(|folder| *folder == "xtask" || is_crate(folder)).collect()
    }

    /// Reads the names of the dependencies in one package's manifest, by section.
    pub fn dependencies(&self, package: &str) -> Result<Dependencies, Error> {
        let path = format!("{package}/Cargo.toml");
        let text = self.text(&path).unwrap_or_default();
        let manifest: toml::Table = text.parse().map_err(|error: toml::de::Error| Error::Toml {
            path,
            problem: error.message().to_owned(),
        })?;
        let mut found = Dependencies::default();
        found.collect(&manifest);
        if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
            targets.values().filter_map(toml::Value::as_table).for_each(|t| found.collect(t));
        }
        Ok(found)
    }
}

/// Names of the dependencies that a package's manifest lists.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// Names in `[dependencies]` and `[build-dependencies]`, for all targets.
    pub normal: BTreeSet<String>,
    /// Names in `[dev-dependencies]`, for all targets.
    pub development: BTreeSet<String>,
}

impl Dependencies {
    fn collect(&mut self, section: &toml::Table) {
        let names = |key: &str| {
            let table = section.get(key).and_then(toml::Value::as_table);
            table.into_iter().flat_map(|table| table.keys().cloned()).collect::<Vec<_>>()
        };
        self.normal.extend(names("dependencies"));
        self.normal.extend(names("build-dependencies"));
        self.development.extend(names("dev-dependencies"));
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        paths.push(entry.map_err(Error::io(folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::SourceTree;

    #[test]
    fn the_repository_reads_itself() {
        let tree = SourceTree::read(&super::root()).unwrap();
        assert!(tree.packages().contains(&"xtask"));
        assert!(tree.text("xtask/src/tree.rs").unwrap().contains("the_repository_reads_itself"));
        assert!(tree.files().all(|(path, _)| !path.starts_with("target/")));
    }

    #[test]
    fn dependencies_of_targets_count() {
        let text = "[dependencies]\na = \"1\"\n[target.'cfg(unix)'.dependencies]\nb = \"1\"\n\
                    [dev-dependencies]\nc = \"1\"";
        let tree = SourceTree::new(&[("crates/x/Cargo.toml", text)]);
        let found = tree.dependencies("crates/x").unwrap();
        assert_eq!(found.normal.iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found.development.iter().collect::<Vec<_>>(), ["c"]);
    }
}
