//! Where real traces and recorded truth lie, outside the repository.

use std::path::{Path, PathBuf};

use trace::open::{self, ReadRequest};
use trace::store::Job;

/// A path under the fixtures; `None`, told as a skip, where they are absent.
pub fn path(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("ROWMILL_FIXTURES").map_or_else(beside, PathBuf::from);
    let path = root.join(name);
    let there = path.exists();
    if !there {
        println!("SKIPPED {}: not there", path.display());
    }
    there.then_some(path)
}

/// The job of a path under `traces`.
pub fn job(name: &str) -> Option<Job> {
    let paths = vec![path(&format!("traces/{name}"))?];
    Some(open::read(&ReadRequest { paths, threads: 1 }).expect("a trace"))
}

/// The text of a file.
pub fn text(name: &str) -> Option<String> {
    Some(std::fs::read_to_string(path(name)?).expect("a text"))
}
