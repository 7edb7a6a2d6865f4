//! Where real traces lie, outside the repository.

use std::path::{Path, PathBuf};

use analyze::Scope;
use analyze::antipattern::{Shapes, Tensors};
use serde_json::Value;
use trace::open::{self, Request};
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
    Some(open::read(&Request { paths, threads: 1 }).expect("a trace"))
}

/// The sizes of the tensors of rows, as the files have them.
pub fn sizes(scopes: &[Scope<'_>], rows: &[Vec<u32>]) -> Shapes {
    let mut shapes = Shapes::new();
    for (scope, rows) in scopes.iter().zip(rows) {
        let arguments = open::arguments(scope.trace, rows).expect("the same file");
        for (row, arguments) in rows.iter().zip(arguments) {
            let list = |name: &str| arguments.get(name).and_then(Value::as_array).cloned();
            let sizes = |of: &Value| {
                let of = of.as_array().map_or(&[][..], Vec::as_slice);
                of.iter().filter_map(Value::as_u64).collect::<Vec<u64>>()
            };
            let Some(dims) = list("Input Dims") else { continue };
            let dims = dims.iter().map(sizes).collect();
            let types = list("Input type").unwrap_or_default();
            let types = types.iter().map(|of| of.as_str().unwrap_or_default().to_owned()).collect();
            shapes.insert((scope.trace.rank, *row), Tensors { dims, types });
        }
    }
    shapes
}
