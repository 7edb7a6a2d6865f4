//! Checks that `train` names neither a device nor the memory layout of a device, because the
//! trainer must work on any device.

use crate::mask::{line_of, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "boundary";
const FOLDER: &str = "crates/train/src/";

/// The CPU and the types of its matrix, weight and vector layouts.
const CPU_TYPES: [&str; 8] =
    ["Cpu", "Isa", "PANEL", "Pairs", "PairsMut", "Operand", "OperandMut", "LinearWeight"];
/// Modules that define these layouts. Only paths are matched, because a variable may have the same
/// name.
const MODULES: [&str; 2] = ["panels", "pairs"];

/// Finds names of the CPU and of its layouts in the sources of `train`.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(FOLDER)) {
        let code = mask(text).code;
        let is_module = |word: &str, at: usize| code[at + word.len()..].starts_with("::");
        for word in CPU_TYPES.into_iter().chain(MODULES) {
            let found_at =
                words(&code, word).filter(|&at| !MODULES.contains(&word) || is_module(word, at));
            for at in found_at {
                let problem = format!("train works on any `Backend`; `{word}` belongs to device");
                found.push(Violation::new(RULE, path, line_of(&code, at), problem));
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
    fn the_trainer_names_no_device_and_no_layout() {
        let text = "//! panels\nuse device::Cpu;\nfn f() { panels::len(1, 2) }\n";
        let found = |path: &str| shown(&find_violations(&SourceTree::new(&[(path, text)])));
        assert_eq!(
            found("crates/train/src/layer/a.rs"),
            [
                "crates/train/src/layer/a.rs:2 boundary: train works on any `Backend`; `Cpu` belongs \
                 to device",
                "crates/train/src/layer/a.rs:3 boundary: train works on any `Backend`; `panels` \
                 belongs to device",
            ]
        );
        for path in ["crates/train/tests/it/a.rs", "crates/cli/src/a.rs"] {
            assert!(found(path).is_empty(), "{path}");
        }
    }
}
