//! Finds files that are not used: sources without a `mod`, and configurations and test data that no
//! other file mentions.

use std::collections::BTreeSet;

use crate::mask::{is_word, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "dead";

/// Folders whose files must be mentioned somewhere. Benchmark definitions are exempt, because
/// `cargo xtask bench` runs all of them.
const NAMED: [&str; 3] = ["configs/", "testdata/", "bench/compare/"];

/// Finds sources that no module declares, and other files that no file mentions.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = find_unreached(tree);
    found.extend(find_unmentioned(tree));
    found
}

fn find_unreached(tree: &SourceTree) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    for (path, _) in tree.rust().filter(|(path, _)| is_root(path)) {
        follow_modules(tree, path, &mut reached);
    }
    let mut found = Vec::new();
    for (path, _) in tree.rust().filter(|(path, _)| is_ours(path) && !reached.contains(*path)) {
        let problem = "no `mod` leads here from lib.rs, main.rs or a test binary".to_owned();
        found.push(Violation::new(RULE, path, 0, problem));
    }
    for (path, _) in tree.files().filter(|(path, _)| path.starts_with("crates/")) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let kernel = path.ends_with(".cu") || path.ends_with(".cuh");
        if kernel && !tree.files().any(|(other, text)| other != path && text.contains(name)) {
            found.push(Violation::new(RULE, path, 0, "no source includes it".to_owned()));
        }
    }
    found
}

fn is_ours(path: &str) -> bool {
    path.starts_with("crates/") || path.starts_with("xtask/")
}

/// Whether cargo compiles the file without a `mod`, because it is the root of a library, a program
/// or a test.
fn is_root(path: &str) -> bool {
    let own = path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
    let own = own.map_or_else(|| path.strip_prefix("xtask/").unwrap_or(path), |(_, own)| own);
    matches!(
        own.split('/').collect::<Vec<_>>()[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["tests" | "benches" | "examples", _]
            | ["fuzz", "fuzz_targets", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    )
}

fn follow_modules(tree: &SourceTree, path: &str, reached: &mut BTreeSet<String>) {
    if !reached.insert(path.to_owned()) {
        return;
    }
    let code = mask(tree.text(path).unwrap_or_default()).code;
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    let own =
        // Modules of a root or of `mod.rs` lie beside the file, those of `a.rs` in the folder `a`.
        if is_root(path) || stem == "mod" { folder.into() } else { format!("{folder}/{stem}") };
    for module in declared_modules(&code) {
        for file in [format!("{own}/{module}.rs"), format!("{own}/{module}/mod.rs")] {
            if tree.text(&file).is_some() {
                follow_modules(tree, &file, reached);
            }
        }
    }
}

/// Returns the paths of the modules that a file declares without a body, relative to the file's own
/// folder.
fn declared_modules(code: &str) -> Vec<String> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for at in words(code, "mod") {
        let start = at + 3 + code[at + 3..].bytes().take_while(u8::is_ascii_whitespace).count();
        let length = code[start..].bytes().take_while(|&byte| is_word(byte)).count();
        let rest = code[start + length..].trim_start();
        if length == 0 || !rest.starts_with(';') {
            continue;
        }
        let mut path = enclosing_modules(bytes, code, at);
        path.push(code[start..start + length].to_owned());
        found.push(path.join("/"));
    }
    found
}

/// Returns the names of the inline modules around a position.
fn enclosing_modules(bytes: &[u8], code: &str, at: usize) -> Vec<String> {
    let mut open: Vec<Option<String>> = Vec::new();
    for (position, byte) in bytes[..at].iter().enumerate() {
        match byte {
            b'{' => {
                let before = code[..position].trim_end();
                let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
                let name = name.unwrap_or_default();
                let is_module = before[..before.len() - name.len()].trim_end().ends_with("mod");
                open.push(is_module.then(|| name.to_owned()));
            }
            b'}' => {
                open.pop();
            }
            _ => {}
        }
    }
    open.into_iter().flatten().collect()
}

fn find_unmentioned(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, _) in tree.files() {
        let Some(folder) = NAMED.iter().find(|folder| path.starts_with(**folder)) else { continue };
        let file = path.rsplit('/').next().unwrap_or(path);
        let stem = file.split('.').next().unwrap_or(file);
        // A folder's note of origin lists all files of the folder, so a mention in it does not
        // prove that a file is used.
        let names = |(other, text): (&str, &str)| {
            let reads =
                [".rs", ".md", ".py", ".toml", ".sh"].iter().any(|end| other.ends_with(end));
            let note = other.starts_with("testdata/") && *folder == "testdata/";
            // The changelog also names files that were removed.
            let history = other == "CHANGELOG.md";
            other != path
                && reads
                && !note
                && !history
                && (text.contains(file) || mentions(text, stem))
        };
        if file != "README.md" && !tree.files().any(names) {
            let problem = format!("no source, document or definition names {stem:?}");
            found.push(Violation::new(RULE, path, 0, problem));
        }
    }
    found
}

/// Whether a text contains a name, and not only as the beginning of a longer name.
fn mentions(text: &str, name: &str) -> bool {
    let longer = |byte: u8| is_word(byte) || byte == b'-';
    text.match_indices(name).any(|(at, _)| {
        let bytes = text.as_bytes();
        let before = at > 0 && longer(bytes[at - 1]);
        !before && !bytes.get(at + name.len()).is_some_and(|&byte| longer(byte))
    })
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tree::SourceTree;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        find_violations(&SourceTree::new(files))
            .into_iter()
            .map(|violation| violation.path)
            .collect()
    }

    #[test]
    fn a_source_without_mod_is_dead() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod b;\n// mod d;\nmod e { mod f; }"),
            ("crates/a/src/b.rs", "mod tests;"),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/src/d.rs", ""),
            ("crates/a/src/e/f.rs", ""),
            ("crates/a/tests/it/main.rs", "mod g;"),
            ("crates/a/tests/it/g.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/a/src/d.rs"]);
    }

    #[test]
    fn folders_with_mod_rs_are_followed() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod ops;"),
            ("crates/a/src/ops/mod.rs", "pub mod x;"),
            ("crates/a/src/ops/x/mod.rs", "mod scalar;"),
            ("crates/a/src/ops/x/scalar.rs", ""),
            ("crates/a/src/ops/x/simd.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/a/src/ops/x/simd.rs"]);
    }

    #[test]
    fn an_unmentioned_configuration_is_dead() {
        let files = [
            ("README.md", "rowmill train configs/dlrm-default.toml"),
            ("configs/dlrm-default.toml", ""),
            ("configs/dlrm.toml", ""),
            ("testdata/golden/README.md", "orphan.json"),
            ("testdata/golden/orphan.json", ""),
        ];
        assert_eq!(dead(&files), ["configs/dlrm.toml", "testdata/golden/orphan.json"]);
    }
}
