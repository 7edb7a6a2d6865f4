//! Counts types whose name three or more files define, because a search for such a name finds more
//! types than a reader can distinguish. `Error`, the name of every crate's error type, is exempt.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Ident, Item};

use crate::tidy::count::Count;
use crate::tidy::source::{Sources, is_test};

/// Maximum number of files that may define a type of the same name.
const FILES: usize = 2;
/// Name of the error type of every crate, which is not counted.
const EXEMPT: &str = "Error";

/// Counts the definitions of types whose name occurs in too many files.
pub fn count(sources: &Sources) -> Count {
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
    let what = "types with a name of three files or more";
    Count { rule: "homonym", table: "homonyms", what, places: found }
}

/// Returns the names of the types that a file defines outside tests.
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
    use super::count;
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
        shown(&count(&source::parse(&tree).unwrap()).check(&tree).unwrap())
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
