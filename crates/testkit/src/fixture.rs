//! Finds fixtures, which are real traces and data sets. The fixtures are outside the repository
//! because of their size.

use std::path::{Path, PathBuf};

use crate::skip::skip;

const NEED: &str = "the fixtures: real traces and data, in ROWMILL_FIXTURES or ../shared/data";

/// Returns the absolute path of a fixture. If the fixture does not exist, the function prints that
/// the test is skipped and returns `None`.
pub fn path(name: &str) -> Option<PathBuf> {
    let path = root().join(name);
    if !path.exists() {
        skip(&path.display().to_string(), NEED);
        return None;
    }
    Some(path)
}

/// Returns the content of a fixture that is a text file.
pub fn text(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(path(name)?).unwrap())
}

/// Returns the folder of all fixtures. A relative path in `ROWMILL_FIXTURES` is relative to the
/// workspace.
pub fn root() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("ROWMILL_FIXTURES").map(PathBuf::from);
    let root = workspace.join(named.unwrap_or_else(|| "../shared/data".into()));
    root.canonicalize().unwrap_or(root)
}
