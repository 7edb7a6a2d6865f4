//! Checks that each operation of `device` is a folder with the same files, so that a missing
//! implementation is noticed.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "operation";
const FOLDER: &str = "crates/device/src/ops/";

/// Operations that call a library on the GPU, so they have a `cuda.rs` but no `kernel.cu`.
const LIBRARY_ON_GPU: [&str; 1] = ["gemm"];

/// Finds operations without one of the required files.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut operations: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        let Some(own) = path.strip_prefix(FOLDER) else { continue };
        match own.split_once('/') {
            Some((operation, file)) => {
                operations.entry(operation).or_default().insert(file);
            }
            None if text.contains("pub fn run(") || text.contains("pub fn forward(") => {
                let problem = "an operation is a folder with mod.rs and scalar.rs".to_owned();
                found.push(Violation::new(RULE, path, 0, problem));
            }
            None => {}
        }
    }
    for (operation, files) in &operations {
        for problem in judge_files(operation, files) {
            found.push(Violation::new(RULE, &format!("{FOLDER}{operation}"), 0, problem));
        }
    }
    found
}

fn judge_files(operation: &str, files: &BTreeSet<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    for file in ["mod.rs", "scalar.rs"] {
        if !files.contains(file) {
            problems.push(format!("expected {file}, got {files:?}"));
        }
    }
    let (launch, kernel) = (files.contains("cuda.rs"), files.contains("kernel.cu"));
    let library = LIBRARY_ON_GPU.contains(&operation);
    if kernel && !launch {
        problems.push("kernel.cu without cuda.rs, which launches it".to_owned());
    }
    if launch && !kernel && !library {
        problems.push("cuda.rs without kernel.cu".to_owned());
    }
    if !launch {
        problems.push("no cuda.rs, the operation's launch on a GPU".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::judge_files;

    fn find_violations(operation: &str, files: &[&str], expected: &[&str]) {
        assert_eq!(judge_files(operation, &files.iter().copied().collect()), expected);
    }

    #[test]
    fn contract_and_oracle_are_demanded() {
        find_violations("loss", &["mod.rs", "scalar.rs", "cuda.rs", "kernel.cu"], &[]);
        find_violations(
            "loss",
            &["mod.rs", "cuda.rs", "kernel.cu"],
            &[r#"expected scalar.rs, got {"cuda.rs", "kernel.cu", "mod.rs"}"#],
        );
    }

    #[test]
    fn a_launch_and_its_kernel_come_in_pairs() {
        let both = ["mod.rs", "scalar.rs", "cuda.rs", "kernel.cu"];
        find_violations("quantize", &both, &[]);
        find_violations("quantize", &both[..3], &["cuda.rs without kernel.cu"]);
        find_violations("quantize", &both[..2], &["no cuda.rs, the operation's launch on a GPU"]);
        find_violations("gemm", &both[..3], &[]);
    }

    #[test]
    fn an_operation_in_a_single_file_is_refused() {
        let tree =
            crate::tree::SourceTree::new(&[("crates/device/src/ops/x.rs", "pub fn run() {}")]);
        assert_eq!(super::find_violations(&tree).len(), 1);
    }
}
