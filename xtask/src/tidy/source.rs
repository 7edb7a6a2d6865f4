//! Parses the sources of all packages once, for the rules that need a syntax tree.

use std::collections::BTreeMap;

use syn::{Attribute, File, Meta};

use crate::error::Error;
use crate::tree::SourceTree;

/// Path and syntax tree of each file below `src/`, by package.
pub type Sources = BTreeMap<String, Vec<(String, File)>>;

/// Parses the sources of every package.
///
/// # Errors
/// Fails if a file is not valid Rust.
pub fn parse(tree: &SourceTree) -> Result<Sources, Error> {
    let all = tree.packages().into_iter();
    all.map(|package| Ok((package.to_owned(), parse_package(tree, package)?))).collect()
}

/// Parses the sources of one package.
fn parse_package(tree: &SourceTree, package: &str) -> Result<Vec<(String, File)>, Error> {
    let folder = format!("{package}/src/");
    let sources = tree.rust().filter(|(path, _)| path.starts_with(&folder));
    let parse = |(path, text): (&str, &str)| match syn::parse_file(text) {
        Ok(file) => Ok((path.to_owned(), file)),
        Err(error) => Err(Error::Check { what: format!("{path}: expected Rust, got: {error}") }),
    };
    sources.map(parse).collect()
}

/// Whether a file contains only tests.
pub fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Replaces the items after `#[cfg(test)]` by blank lines, so that the other lines keep their
/// numbers. The text must be formatted: an item ends at the first line that closes a brace at the
/// item's own indent.
pub fn without_tests(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut indent = None;
    for line in text.lines() {
        let own = line.len() - line.trim_start().len();
        if indent.is_none() && line.trim_start().starts_with("#[cfg(test)]") {
            indent = Some(own);
        } else if let Some(open) = indent {
            let is_last = own == open && (line.ends_with(['}', ';']));
            indent = if is_last { None } else { indent };
        } else {
            kept += line;
        }
        kept.push('\n');
    }
    kept
}

/// Whether an item is compiled only for tests.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::without_tests;

    #[test]
    fn items_behind_cfg_test_are_blanked() {
        let text = "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {\n    g();\n}\n\
                    impl A {\n    #[cfg(test)]\n    fn h() {\n        i();\n    }\n    fn j();\n}\n";
        let kept = "mod a;\n\n\nfn f() {\n    g();\n}\nimpl A {\n\n\n\n\n    fn j();\n}\n";
        assert_eq!(without_tests(text), kept);
    }
}
