//! Crates that take values and give values name no file, clock or environment. Test code may read
//! what it needs.

use crate::mask::{line_of, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const PURE: [&str; 6] = ["schema", "analyze", "kernel_model", "predict", "plan", "report"];
const IMPURE: [&str; 7] =
    ["std::fs", "std::env", "std::net", "std::process", "std::io", "SystemTime", "Instant"];

pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let code = mask(text).code;
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
}
