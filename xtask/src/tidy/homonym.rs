//! Names of types that several files define: beyond two, a search finds more types than one can
//! tell apart. The error of a crate is called `Error` everywhere.
//!
//! `xtask/ratchet.toml` lists by package how many such definitions there are, which may only
//! shrink.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Ident, Item};

use crate::error::Error;
use crate::tidy::count::Count;
use crate::tidy::source::{Sources, is_test};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

/// Files that may define the same name.
const FILES: usize = 2;
/// What every crate calls its error.
const EXEMPT: &str = "Error";

const HOMONYMS: Count =
    Count { rule: "homonym", table: "homonyms", what: "types with a name of three files or more" };

pub fn check(tree: &SourceTree, sources: &Sources) -> Result<Vec<Violation>, Error> {
    let mut files: BTreeMap<String, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for (package, parsed) in sources {
        for (path, file) in parsed.iter().filter(|(path, _)| !path.ends_with("/tests.rs")) {
            for name in names(&file.items) {
                files.entry(name.to_string()).or_default().insert((package, path));
            }
        }
    }
    let mut found: BTreeMap<String, Vec<String>> =
        sources.keys().map(|package| (package.clone(), Vec::new())).collect();
    for (name, files) in files {
        if files.len() <= FILES || name == EXEMPT {
            continue;
        }
        for (package, path) in files {
            found.entry(package.to_owned()).or_default().push(format!("{path}::{name}"));
        }
    }
    HOMONYMS.check(tree, &found)
}

/// The types of a file, outside of tests.
fn names(items: &[Item]) -> impl Iterator<Item = &Ident> {
    items.iter().filter_map(|item| {
        let (attributes, name) = match item {
            Item::Struct(item) => (&item.attrs, &item.ident),
            Item::Enum(item) => (&item.attrs, &item.ident),
            Item::Union(item) => (&item.attrs, &item.ident),
            Item::Trait(item) => (&item.attrs, &item.ident),
            Item::Type(item) => (&item.attrs, &item.ident),
            _ => return None,
        };
        (!is_test(attributes)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::source;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn found(list: &str) -> Vec<String> {
        let part = "pub struct Part;\npub enum Error {}\n#[cfg(test)]\nstruct Fixture;\n";
        let tree = SourceTree::new(&[
            ("crates/data/Cargo.toml", ""),
            ("crates/data/src/a.rs", part),
            ("crates/data/src/b.rs", part),
            ("crates/data/src/b/tests.rs", "struct Part;"),
            ("xtask/Cargo.toml", ""),
            ("xtask/src/c.rs", "type Part = u8;\nenum Error {}\nfn f() { struct Other; }\n"),
            ("xtask/ratchet.toml", list),
        ]);
        shown(&check(&tree, &source::parse(&tree).unwrap()).unwrap())
    }

    #[test]
    fn a_name_of_three_files_counts_in_each() {
        let what = "types with a name of three files or more";
        let data = "crates/data/src/a.rs::Part, crates/data/src/b.rs::Part";
        assert_eq!(
            found(""),
            [
                format!("crates/data:0 homonym: expected no {what}, got 2: {data}"),
                format!("xtask:0 homonym: expected no {what}, got 1: xtask/src/c.rs::Part"),
            ]
        );
        let list = "[homonyms]\n\"crates/data\" = 2\n\"xtask\" = 1\n";
        assert_eq!(found(list), Vec::<String>::new());
    }
}
