//! Checks that pure crates do not access files, clocks or the environment. A pure crate may write
//! to an `io::Write` that the caller passes, and its tests may read files.

use crate::mask::{line_of, mask, words};
use crate::tidy::source::{is_test_file, without_tests};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const PURE: [&str; 6] = ["schema", "analyze", "kernel_model", "predict", "plan", "report"];
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "stdin",
    "stdout",
    "stderr",
    "SystemTime",
    "Instant",
];

/// Finds names of files, clocks and the environment in the pure crates.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let Some(name) = PURE.iter().find(|name| path.starts_with(&format!("crates/{name}/src/")))
        else {
            continue;
        };
        if is_test_file(path) {
            continue;
        }
        let product = mask(&without_tests(text)).code;
        for word in IMPURE {
            for at in words(&product, word) {
                let problem = format!("{name} is pure; `{word}` belongs to the binaries");
                found.push(Violation::new("purity", path, line_of(&product, at), problem));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    #[test]
    fn a_clock_in_a_pure_crate_is_named_with_its_line() {
        let text = "//! x\nuse std::time::Instant;\n#[cfg(test)]\nmod tests { use std::fs; }";
        let found = shown(&find_violations(&SourceTree::new(&[("crates/plan/src/a.rs", text)])));
        assert_eq!(
            found,
            ["crates/plan/src/a.rs:2 purity: plan is pure; `Instant` belongs to the binaries"]
        );
        assert_eq!(find_violations(&SourceTree::new(&[("crates/train/src/a.rs", text)])), []);
    }
}
