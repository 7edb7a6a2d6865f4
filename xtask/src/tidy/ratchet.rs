//! Sizes of files and functions, with a list of older excess that may only shrink.
//!
//! `xtask/ratchet.toml` has the tables `files` and `functions`, each from a place to its current
//! size. [`ENTRIES_AT_MOST`] makes a new entry a change of this file, which a reviewer
//! sees.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::function;
use crate::mask::mask;
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "size";
const LIST: &str = "xtask/ratchet.toml";

/// Entries the list had when this number was last lowered. It is never raised.
const ENTRIES_AT_MOST: usize = 0;

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;
const KERNEL_LINES: usize = 120;
const KERNELS: [&str; 2] = ["crates/device/src/ops/", "crates/device/src/optimizer/"];

/// One size with its limit.
struct Size {
    kind: &'static str,
    path: String,
    line: usize,
    place: String,
    got: usize,
    limit: usize,
}

pub fn check(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let mut listed = read_list(tree)?;
    let mut found = Vec::new();
    let entries = listed.len();
    if entries > ENTRIES_AT_MOST {
        let problem = format!("expected at most {ENTRIES_AT_MOST} entries, got {entries}");
        found.push(Violation::new(RULE, LIST, 0, problem));
    }
    for size in sizes(tree) {
        let key = (size.kind.to_owned(), size.place.clone());
        if let Some(problem) = judge(&size, listed.remove(&key)) {
            found.push(Violation::new(RULE, &size.path, size.line, problem));
        }
    }
    for (kind, place) in listed.into_keys() {
        let problem = format!("{kind}: {place:?} exists no longer; remove the entry");
        found.push(Violation::new(RULE, LIST, 0, problem));
    }
    Ok(found)
}

fn judge(size: &Size, listed: Option<usize>) -> Option<String> {
    let Size { kind, place, got, limit, .. } = size;
    match listed {
        None => (got > limit).then(|| format!("{kind}: expected at most {limit}, got {got}")),
        Some(_) if got <= limit => Some(format!("{kind}: within {limit}; remove it from {LIST}")),
        Some(before) if *got > before => {
            Some(format!("{kind}: listed with {before} and may only shrink, got {got}"))
        }
        Some(before) if *got < before => {
            Some(format!("{kind}: shrunk to {got}; set \"{place}\" = {got} in {LIST}"))
        }
        Some(_) => None,
    }
}

fn sizes(tree: &SourceTree) -> Vec<Size> {
    let mut all = Vec::new();
    for (path, text) in tree.rust() {
        let lines = text.lines().count();
        all.push(Size {
            kind: "files",
            path: path.to_owned(),
            line: 0,
            place: path.to_owned(),
            got: lines,
            limit: FILE_LINES,
        });
        let kernel = KERNELS.iter().any(|folder| path.starts_with(folder));
        let longest = if kernel { KERNEL_LINES } else { FUNCTION_LINES };
        for function in function::find(&mask(text).code) {
            let place = format!("{path}::{}", function.name);
            let (kind, path, line) = ("functions", path.to_owned(), function.line);
            all.push(Size { kind, path, line, place, got: function.length, limit: longest });
        }
    }
    all
}

/// Kind and place to the size listed.
fn read_list(tree: &SourceTree) -> Result<BTreeMap<(String, String), usize>, Error> {
    let text = tree.text(LIST).unwrap_or_default();
    let wrong = |problem: String| Error::Toml { path: LIST.to_owned(), problem };
    let mut table: BTreeMap<String, BTreeMap<String, usize>> = text
        .parse::<toml::Table>()
        .and_then(toml::Table::try_into)
        .map_err(|error| wrong(error.message().to_owned()))?;
    let mut listed = BTreeMap::new();
    // The others count by package.
    table.retain(|kind, _| {
        !["circles", "parameters", "tuples", "homonyms"].contains(&kind.as_str())
    });
    for (kind, entries) in table {
        if !["files", "functions"].contains(&kind.as_str()) {
            return Err(wrong(format!("expected files or functions, got {kind:?}")));
        }
        for (place, size) in entries {
            listed.insert((kind.clone(), place), size);
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::{Size, check, judge};
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn function_of(lines: usize) -> String {
        format!("//! x\nfn long() {{\n{}}}\n", "    step();\n".repeat(lines))
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        shown(&check(&SourceTree::new(&[(path, text)])).unwrap())
    }

    #[test]
    fn a_long_function_is_refused_and_a_kernel_may_be_longer() {
        let text = function_of(71);
        assert_eq!(
            found("crates/data/src/a.rs", &text),
            ["crates/data/src/a.rs:2 size: functions: expected at most 70, got 71"]
        );
        assert_eq!(found("crates/device/src/ops/x/simd.rs", &text), Vec::<String>::new());
        assert_eq!(found("crates/device/src/ops/x/simd.rs", &function_of(121)).len(), 1);
    }

    #[test]
    fn a_long_file_is_refused() {
        assert_eq!(found("crates/data/src/a.rs", &"// x\n".repeat(801)).len(), 1);
    }

    #[test]
    fn the_list_only_shrinks() {
        let verdict = |got, listed| {
            let (path, place) = (String::new(), "p::f".to_owned());
            judge(&Size { kind: "functions", path, line: 1, place, got, limit: 70 }, Some(listed))
        };
        assert_eq!(verdict(80, 80), None);
        assert!(verdict(81, 80).unwrap().contains("may only shrink, got 81"));
        assert!(verdict(79, 80).unwrap().contains("set \"p::f\" = 79"));
        assert!(verdict(70, 80).unwrap().contains("remove it"));
    }

    #[test]
    fn a_new_entry_is_itself_a_breach() {
        let list = "[functions]\n\"crates/data/src/a.rs::long\" = 71\n";
        let text = function_of(71);
        let tree =
            SourceTree::new(&[("crates/data/src/a.rs", &text), ("xtask/ratchet.toml", list)]);
        let found = shown(&check(&tree).unwrap());
        assert_eq!(found, ["xtask/ratchet.toml:0 size: expected at most 0 entries, got 1"]);
    }
}
