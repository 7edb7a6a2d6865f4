//! `cargo xtask map` writes docs/code-map.md with the first sentence of every source file, by crate
//! and folder. `ci` does not check that the page is current.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::tidy::source::is_test_file;
use crate::tree::{self, SourceTree};

pub const HELP: &str = "\
Writes docs/code-map.md: one line per source file, with the first sentence of its `//!` comment.

Usage: cargo xtask map";

const PAGE: &str = "docs/code-map.md";

const HEAD: &str = "\
# Code map

The first sentence of every source file, written by `cargo xtask map`. Run it after larger moves; it may
lag behind the sources in between. [ARCHITECTURE.md](../ARCHITECTURE.md) names the files to read first.
";

/// Writes the page from the current sources.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    if !arguments.is_empty() {
        let problem = format!("expected no arguments, got {arguments:?}");
        return Err(Error::Usage { task: "map", problem });
    }
    let root = tree::root();
    let page = page(&SourceTree::read(&root)?);
    let path = root.join(PAGE);
    std::fs::write(&path, page).map_err(Error::io(path))
}

/// Returns the text of the page, which does not list test files.
fn page(tree: &SourceTree) -> String {
    let mut page = HEAD.to_owned();
    for package in tree.packages() {
        let sources = format!("{package}/src/");
        let mut folders: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
        for (path, text) in tree.rust().filter(|(path, _)| path.starts_with(&sources)) {
            if let (false, Some(sentence)) = (is_test_file(path), first_sentence(text)) {
                let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
                folders.entry(folder).or_default().push((file, sentence));
            }
        }
        page += &format!("\n## {}\n", package.rsplit('/').next().unwrap_or(package));
        for (folder, files) in folders {
            page += &format!("\n`{folder}/`\n\n");
            for (file, sentence) in files {
                page += &format!("- [{file}](../{folder}/{file}): {sentence}\n");
            }
        }
    }
    page
}

/// Returns the first sentence of the `//!` comment at the start of a file.
fn first_sentence(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    // A period inside a sentence, as in `e.g. ids`, is not followed by a capital letter.
    let end = paragraph.match_indices(". ").map(|(at, _)| at).find(|&at| {
        let is_capital = |c: char| c.is_uppercase() || c == '`' || c == '[';
        paragraph[at + 2..].starts_with(is_capital)
    });
    let sentence = end.map_or(paragraph.as_str(), |end| &paragraph[..=end]);
    (!sentence.is_empty()).then(|| sentence.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{first_sentence, page};
    use crate::tree::SourceTree;

    #[test]
    fn a_sentence_may_span_lines_and_contain_periods() {
        let sentence = |text: &str| first_sentence(text).unwrap();
        assert_eq!(sentence("//! Reads `a.b` and\n//! c. Writes.\n"), "Reads `a.b` and c.");
        assert_eq!(
            sentence("//! Reads rows, e.g. ids.\n//!\n//! More.\n"),
            "Reads rows, e.g. ids."
        );
        assert_eq!(first_sentence("use a;\n"), None);
    }

    #[test]
    fn files_stand_under_their_crate_and_folder() {
        let tree = SourceTree::new(&[
            ("crates/data/Cargo.toml", ""),
            ("crates/data/src/lib.rs", "//! Data."),
            ("crates/data/src/input/csv.rs", "//! Reads CSV."),
            ("crates/data/src/input/tests.rs", "//! Tests."),
        ]);
        let expected = "\n## data\n\n`crates/data/src/`\n\n- [lib.rs](../crates/data/src/lib.rs): Data.\n\n\
                        `crates/data/src/input/`\n\n\
                        - [csv.rs](../crates/data/src/input/csv.rs): Reads CSV.\n";
        assert!(page(&tree).ends_with(expected), "{}", page(&tree));
    }
}
