//! Finds the files of NVIDIA's libraries on a machine and sorts them in the order in which they
//! are tried. `loader.rs` opens the files. This module does not read environment variables.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// One of NVIDIA's libraries that is opened at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The run-time compiler of kernels (NVRTC).
    Nvrtc,
    CublasLt,
    Nccl,
}

impl CudaLibrary {
    /// Returns the name of the library in NVIDIA's documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Nccl => "NCCL",
        }
    }

    /// Returns the file name of the library without a version.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Nvrtc => "libnvrtc.so",
            Self::CublasLt => "libcublasLt.so",
            Self::Nccl => "libnccl.so",
        }
    }

    /// Returns the version suffixes of the file names that are passed to the linker, newest
    /// first. The name without a version exists only with development packages, so it comes last.
    fn linker_versions(self) -> &'static [&'static str] {
        match self {
            Self::Nvrtc | Self::CublasLt => &[".13", ".12", ""],
            Self::Nccl => &[".2", ""],
        }
    }
}

/// Folders of a machine that may hold NVIDIA's libraries or Python packages with them.
#[derive(Clone, Debug, Default)]
pub struct LibraryRoots {
    /// Folders named by the user that contain the libraries themselves. These folders are
    /// searched before the linker's folders.
    pub named: Vec<PathBuf>,
    /// Prefixes of Python environments, such as `VIRTUAL_ENV`.
    pub environments: Vec<PathBuf>,
    /// Folders of Python packages, such as the entries of `PYTHONPATH`.
    pub packages: Vec<PathBuf>,
    /// Folders of programs, such as the entries of `PATH`. The `python3` in such a folder leads
    /// to the folder of its packages.
    pub programs: Vec<PathBuf>,
    /// Prefixes of Python installations that come after all others, such as `/usr`.
    pub installations: Vec<PathBuf>,
    /// Folders that hold toolkits, such as `/usr/local` with `/usr/local/cuda/lib64`.
    pub toolkits: Vec<PathBuf>,
}

impl LibraryRoots {
    /// Derives the folders from the environment of a process; `variable` looks up one variable.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name| variable(name).filter(|value: &OsString| !value.is_empty());
        let one = |name| variable(name).map(PathBuf::from);
        let list = |name| -> Vec<PathBuf> {
            variable(name).iter().flat_map(std::env::split_paths).collect()
        };
        let of_user = one("HOME").map(|home| home.join(".local"));
        Self {
            named: list("ROWMILL_CUDA_LIBRARIES"),
            environments: [one("VIRTUAL_ENV"), one("CONDA_PREFIX")].into_iter().flatten().collect(),
            packages: list("PYTHONPATH"),
            programs: list("PATH"),
            installations: of_user
                .into_iter()
                .chain(["/usr".into(), "/usr/local".into()])
                .collect(),
            toolkits: vec!["/usr/local".into()],
        }
    }
}

/// The order in which folders are searched for NVIDIA's libraries. The default searches only the
/// folders of the dynamic linker.
#[derive(Clone, Debug, Default)]
pub struct LibrarySearch {
    /// Groups of folders to search before the linker's. In each group, the newest version is
    /// used.
    before_linker: Vec<Vec<PathBuf>>,
    after_linker: Vec<Vec<PathBuf>>,
}

impl LibrarySearch {
    /// Lists the folders below `roots` in this order: named folders, the linker's folders, the
    /// folders of Python packages (`nvidia/*/lib`), the folders of toolkits.
    #[must_use]
    pub fn new(roots: &LibraryRoots) -> Self {
        let of_programs = roots.programs.iter().flat_map(|folder| python_prefixes(folder));
        let packages = (roots.environments.iter().flat_map(|prefix| python_packages(prefix)))
            .chain(roots.packages.iter().cloned())
            .chain(of_programs.flat_map(|prefix| python_packages(&prefix)))
            .chain(roots.installations.iter().flat_map(|prefix| python_packages(prefix)));
        let mut seen = Vec::new();
        let is_new = |folder: &PathBuf| {
            let resolved = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            let is_new = !seen.contains(&resolved);
            seen.push(resolved);
            is_new
        };
        let packages: Vec<PathBuf> = packages.filter(is_new).collect();
        let of_packages = packages.iter().map(|folder| library_folders(&folder.join("nvidia"), ""));
        let of_toolkits = roots
            .toolkits
            .iter()
            .flat_map(|folder| [vec![folder.join("cuda/lib64")], library_folders(folder, "cuda")]);
        let is_there = |place: &Vec<PathBuf>| place.iter().any(|folder| folder.is_dir());
        Self {
            before_linker: roots.named.iter().map(|folder| vec![folder.clone()]).collect(),
            after_linker: of_packages.chain(of_toolkits).filter(is_there).collect(),
        }
    }

    /// Returns all folders that are searched in addition to the linker's.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.before_linker.iter().chain(&self.after_linker).flatten().map(PathBuf::as_path)
    }

    /// Returns the folders named by the user that do not exist.
    pub(super) fn missing_folders(&self) -> impl Iterator<Item = &Path> {
        self.before_linker.iter().flatten().map(PathBuf::as_path).filter(|folder| !folder.is_dir())
    }

    /// Returns the files to try, in order. A name without a folder is passed to the linker's
    /// search.
    #[must_use]
    pub fn candidates(&self, library: CudaLibrary) -> Vec<PathBuf> {
        let file = library.file();
        let names = library.linker_versions().iter().map(|version| format!("{file}{version}"));
        let mut candidates: Vec<PathBuf> = Vec::new();
        candidates.extend(self.before_linker.iter().flat_map(|place| newest_first(place, file)));
        candidates.extend(names.map(PathBuf::from));
        candidates.extend(self.after_linker.iter().flat_map(|place| newest_first(place, file)));
        candidates
    }
}

/// A file that may be the library but cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedLibrary {
    /// Path of the file, or the name that was passed to the linker.
    pub path: PathBuf,
    /// The reason why the file cannot be used.
    pub reason: String,
}

impl fmt::Display for RejectedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// Lists the files of a library in `folders`, newest version first. If one file has several names,
/// only the most specific name is kept.
pub(super) fn newest_first(folders: &[PathBuf], file: &str) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = Vec::new();
    for folder in folders {
        for path in entries(folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(version) = version_of(&name, file) {
                found.push((version, path));
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    let mut files = Vec::new();
    found.retain(|(_, path)| {
        let resolved = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let is_new = !files.contains(&resolved);
        files.push(resolved);
        is_new
    });
    found.into_iter().map(|(_, path)| path).collect()
}

/// Returns the version numbers that follow `file` in `name`, or `None` if `name` is not a name of
/// this library.
fn version_of(name: &str, file: &str) -> Option<Vec<u32>> {
    let rest = name.strip_prefix(file)?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.strip_prefix('.')?.split('.').map(|number| number.parse().ok()).collect()
}

/// Lists `lib` and `lib64` in each folder below `folder` whose name begins with `prefix`.
fn library_folders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let members = entries(folder).into_iter().filter(fits);
    let libraries = members.flat_map(|path| [path.join("lib"), path.join("lib64")]);
    libraries.filter(|path| path.is_dir()).collect()
}

/// Lists the folders of Python packages below the prefix of an installation.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let is_python = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    };
    let libraries = [prefix.join("lib"), prefix.join("lib64")];
    let versions = libraries.iter().flat_map(|folder| entries(folder)).filter(is_python);
    let packages =
        versions.flat_map(|path| [path.join("site-packages"), path.join("dist-packages")]);
    packages.filter(|path| path.is_dir()).collect()
}

/// Lists the prefixes of the installations to which `python3` in `folder` belongs. The program of
/// a virtual environment is a link to another program, so each link on the path gives a prefix.
fn python_prefixes(folder: &Path) -> Vec<PathBuf> {
    /// The number of links that Linux itself follows before it gives up.
    const LINKS_MAX: usize = 40;
    let mut program = folder.join("python3");
    let mut prefixes = Vec::new();
    for _ in 0..LINKS_MAX {
        if !program.exists() {
            break;
        }
        // The folder itself may be a symbolic link, as `/bin` often is.
        let Some(Ok(parent)) = program.parent().map(fs::canonicalize) else { break };
        prefixes.extend(parent.parent().map(PathBuf::from));
        let Ok(target) = fs::read_link(&program) else { break };
        program = parent.join(target);
    }
    prefixes
}

/// Lists the paths in a folder in sorted order. The list is empty if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests;
