//! The sources of all packages, parsed once for the rules that need more than text. Judges nothing.

use std::collections::BTreeMap;

use syn::{Attribute, File, Meta};

use crate::error::Error;
use crate::tree::SourceTree;

/// By package: path and content of each file below `src/`.
pub type Sources = BTreeMap<String, Vec<(String, File)>>;

/// Parses all of them.
///
/// # Errors
/// The first that is no Rust.
pub fn parse(tree: &SourceTree) -> Result<Sources, Error> {
    let all = tree.packages().into_iter();
    all.map(|package| Ok((package.to_owned(), parsed(tree, package)?))).collect()
}

/// Those of one package.
fn parsed(tree: &SourceTree, package: &str) -> Result<Vec<(String, File)>, Error> {
    let folder = format!("{package}/src/");
    let sources = tree.rust().filter(|(path, _)| path.starts_with(&folder));
    let parse = |(path, text): (&str, &str)| match syn::parse_file(text) {
        Ok(file) => Ok((path.to_owned(), file)),
        Err(error) => Err(Error::Check { what: format!("{path}: expected Rust, got: {error}") }),
    };
    sources.map(parse).collect()
}

/// Whether an item is for tests alone.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}
