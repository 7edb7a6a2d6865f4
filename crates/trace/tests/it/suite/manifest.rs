//! Reads the manifest of a suite (`suite.json`), which lists its runs and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A suite as its manifest describes it.
pub struct Suite {
    pub folder: PathBuf,
    pub device: String,
    pub runs: Vec<Value>,
    pub files: Vec<File>,
}

/// One file of a suite. Model, form and pooling describe the measured model.
pub struct File {
    /// Path relative to the suite's folder.
    pub path: String,
    pub kind: String,
    /// Id of the run, which is empty for files that do not belong to a single run.
    pub run: String,
    pub model: String,
    pub form: Option<String>,
    pub pooling: Option<u64>,
    pub steps: Option<u64>,
    pub bytes: u64,
    pub sha256: String,
}

impl Suite {
    pub fn read(folder: &Path) -> Self {
        let list: Value =
            serde_json::from_slice(&fs::read(folder.join("suite.json")).unwrap()).unwrap();
        assert_eq!(list["schema"], "rowmill-suite");
        assert_eq!(list["version"], 1);
        assert!(list["quick"].is_boolean() && list["seed"].is_u64());
        let environments = list["environments"].as_object().unwrap();
        for stage in ["collect/times", "collect/traces", "microbench/kernels", "cases/pairs"] {
            assert!(environments[stage]["torch"].is_string(), "{stage}");
        }
        let runs = list["runs"].as_array().unwrap().clone();
        let files = list["files"].as_array().unwrap().iter().map(File::from_json).collect();
        let device = list["device"].as_str().unwrap().to_owned();
        Self { folder: folder.to_owned(), device, runs, files }
    }

    pub fn path(&self, file: &File) -> PathBuf {
        self.folder.join(&file.path)
    }

    pub fn files_of(&self, kind: &str) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.kind == kind)
    }
}

impl File {
    fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let file = Self {
            path: text("path"),
            kind: text("kind"),
            run: text("run"),
            model: text("model"),
            form: value["form"].as_str().map(str::to_owned),
            pooling: value["pooling"].as_u64(),
            steps: value["steps"].as_u64(),
            bytes: value["bytes"].as_u64().unwrap(),
            sha256: text("sha256"),
        };
        let of_model = ["step_times", "kineto", "execution_trace"].contains(&&*file.kind);
        assert!(!of_model || !file.model.is_empty() && value["batch"].is_u64(), "{value}");
        file
    }
}

/// Lists every file below a folder.
pub fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.insert(path);
        }
    }
    found
}
