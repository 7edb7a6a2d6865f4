//! Counts functions and closures that are called `of` or `of_…`. Functions should be named by verbs
//! with an object, and constructors `new`, `from_…` or `with_…`.

use crate::tidy::count::Count;
use crate::tidy::item::{Item, ItemKind, find_items};
use crate::tidy::source::Sources;

/// Counts the functions and closures that are called `of`.
pub fn count(sources: &Sources) -> Count {
    let named = |(path, file): &(String, syn::File)| {
        let items = find_items(file).into_iter().filter(is_of);
        items.map(|item| format!("{path}::{}", item.name)).collect::<Vec<_>>()
    };
    let places = sources
        .iter()
        .map(|(package, files)| (package.clone(), files.iter().flat_map(named).collect()))
        .collect();
    Count {
        rule: "verb",
        table: "of",
        what: "functions and closures called `of` or `of_…`",
        places,
    }
}

/// Whether an item is a function or closure whose name is a preposition.
fn is_of(item: &Item) -> bool {
    let is_function = matches!(item.kind, ItemKind::Function | ItemKind::Closure);
    is_function && (item.name == "of" || item.name.starts_with("of_"))
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::tidy::source;
    use crate::tree::SourceTree;

    #[test]
    fn functions_and_closures_called_of_are_counted() {
        let text = "fn of() {}\nimpl A { fn of_table(&self) { let of = |a: u8| a; } }\n\
                    fn offset() { let office = 1; }\n";
        let files = [("crates/data/Cargo.toml", ""), ("crates/data/src/a.rs", text)];
        let sources = source::parse(&SourceTree::new(&files)).unwrap();
        let names = ["of", "of_table", "of"].map(|name| format!("crates/data/src/a.rs::{name}"));
        assert_eq!(count(&sources).places["crates/data"], names);
    }
}
