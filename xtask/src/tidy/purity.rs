//! Crates that take values and give values name no file, clock or environment; `unsafe` has
//! addresses. Test code may read what it needs.

use crate::mask::{line_of, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const PURE: [&str; 5] = ["schema", "analyze", "predict", "plan", "report"];
const IMPURE: [&str; 7] =
    ["std::fs", "std::env", "std::net", "std::process", "std::io", "SystemTime", "Instant"];
const UNSAFE: [&str; 3] =
    ["crates/device/src/", "crates/python/src/", "crates/comm/src/mpi/ffi.rs"];

pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let code = mask(text).code;
        if !UNSAFE.iter().any(|folder| path.starts_with(folder)) {
            for at in words(&code, "unsafe") {
                let problem =
                    "`unsafe` belongs to device and comm/mpi/ffi.rs; got it here".to_owned();
                found.push(Violation::new("unsafe", path, line_of(&code, at), problem));
            }
        }
        let Some(name) = PURE.iter().find(|name| path.starts_with(&format!("crates/{name}/src/")))
        else {
            continue;
        };
        if path.ends_with("/tests.rs") {
            continue;
        }
        let product = code.split("#[cfg(test)]").next().unwrap_or_default();
        for word in IMPURE {
            for at in words(product, word) {
                let problem = format!("{name} is pure; `{word}` belongs to the doors");
                found.push(Violation::new("purity", path, line_of(product, at), problem));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    #[test]
    fn a_clock_in_a_pure_crate_is_named_with_its_line() {
        let text = "//! x\nuse std::time::Instant;\n#[cfg(test)]\nmod tests { use std::fs; }";
        let found = shown(&check(&SourceTree::new(&[("crates/plan/src/a.rs", text)])));
        assert_eq!(
            found,
            ["crates/plan/src/a.rs:2 purity: plan is pure; `Instant` belongs to the doors"]
        );
        assert_eq!(check(&SourceTree::new(&[("crates/train/src/a.rs", text)])), []);
    }

    #[test]
    fn unsafe_has_one_address() {
        let text = "//! about unsafe\n#![expect(unsafe_code)]\nfn f() { unsafe { g() } }";
        let found = shown(&check(&SourceTree::new(&[("crates/data/src/a.rs", text)])));
        let expected = "crates/data/src/a.rs:3 unsafe: `unsafe` belongs to device and \
                        comm/mpi/ffi.rs; got it here";
        assert_eq!(found, [expected]);
        for path in ["crates/device/src/a.rs", "crates/comm/src/mpi/ffi.rs"] {
            assert_eq!(check(&SourceTree::new(&[(path, text)])), []);
        }
    }
}
