//! Limits the sizes of files and functions. The tables `files` and `functions` of
//! `xtask/ratchet.toml` list older files and functions above the limits with their current size,
//! which may only shrink. A new entry needs a change of [`ENTRIES_AT_MOST`], which a reviewer sees.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::function;
use crate::mask::mask;
use crate::tidy::count::LIST;
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "size";

/// Maximum number of entries in the list. The limit is lowered together with the list and never
/// raised.
const ENTRIES_AT_MOST: usize = 0;

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 100;
const KERNEL_LINES: usize = 120;
const KERNELS: [&str; 2] = ["crates/device/src/ops/", "crates/device/src/optimizer/"];

/// The size of one file or function, with its limit.
struct Size {
    kind: &'static str,
    path: String,
    line: usize,
    place: String,
    got: usize,
    limit: usize,
}

/// Compares all sizes with their limits and with the list.
///
/// # Errors
/// Fails if the list is malformed.
pub fn find_violations(tree: &SourceTree) -> Result<Vec<Violation>, Error> {
    let mut listed = read_list(tree)?;
    let mut found = Vec::new();
    let entries = listed.len();
    if entries > ENTRIES_AT_MOST {
        let problem = format!("expected at most {ENTRIES_AT_MOST} entries, got {entries}");
        found.push(Violation::new(RULE, LIST, 0, problem));
    }
    for size in measure_sizes(tree) {
        let key = (size.kind.to_owned(), size.place.clone());
        if let Some(problem) = judge_size(&size, listed.remove(&key)) {
            found.push(Violation::new(RULE, &size.path, size.line, problem));
        }
    }
    // Entries that are left were not measured, so their file or function no longer exists.
    for (kind, place) in listed.into_keys() {
        let problem = format!("{kind}: {place:?} exists no longer; remove the entry");
        found.push(Violation::new(RULE, LIST, 0, problem));
    }
    Ok(found)
}

fn judge_size(size: &Size, listed: Option<usize>) -> Option<String> {
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

fn measure_sizes(tree: &SourceTree) -> Vec<Size> {
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
        for function in function::find_functions(&mask(text).code) {
            let place = format!("{path}::{}", function.name);
            let (kind, path, line) = ("functions", path.to_owned(), function.line);
            all.push(Size { kind, path, line, place, got: function.length, limit: longest });
        }
    }
    all
}

/// Reads the listed sizes by kind and place.
fn read_list(tree: &SourceTree) -> Result<BTreeMap<(String, String), usize>, Error> {
    let text = tree.text(LIST).unwrap_or_default();
    let wrong = |problem: String| Error::Toml { path: LIST.to_owned(), problem };
    let mut table: BTreeMap<String, BTreeMap<String, usize>> = text
        .parse::<toml::Table>()
        .and_then(toml::Table::try_into)
        .map_err(|error| wrong(error.message().to_owned()))?;
    let mut listed = BTreeMap::new();
    // The other tables of the file have numbers by package, which `Count` reads.
    table.retain(|kind, _| ["files", "functions"].contains(&kind.as_str()));
    for (kind, entries) in table {
        for (place, size) in entries {
            listed.insert((kind.clone(), place), size);
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::{Size, find_violations, judge_size};
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn long_function(lines: usize) -> String {
        format!("//! x\nfn long() {{\n{}}}\n", "    step();\n".repeat(lines))
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        shown(&find_violations(&SourceTree::new(&[(path, text)])).unwrap())
    }

    #[test]
    fn a_long_function_is_refused_and_a_kernel_may_be_longer() {
        let text = long_function(101);
        assert_eq!(
            found("crates/data/src/a.rs", &text),
            ["crates/data/src/a.rs:2 size: functions: expected at most 100, got 101"]
        );
        assert_eq!(found("crates/device/src/ops/x/simd.rs", &text), Vec::<String>::new());
        assert_eq!(found("crates/device/src/ops/x/simd.rs", &long_function(121)).len(), 1);
    }

    #[test]
    fn a_long_file_is_refused() {
        assert_eq!(found("crates/data/src/a.rs", &"// x\n".repeat(801)).len(), 1);
    }

    #[test]
    fn the_list_only_shrinks() {
        let verdict = |got, listed| {
            let (path, place) = (String::new(), "p::f".to_owned());
            judge_size(
                &Size { kind: "functions", path, line: 1, place, got, limit: 100 },
                Some(listed),
            )
        };
        assert_eq!(verdict(110, 110), None);
        assert!(verdict(111, 110).unwrap().contains("may only shrink, got 111"));
        assert!(verdict(109, 110).unwrap().contains("set \"p::f\" = 109"));
        assert!(verdict(100, 110).unwrap().contains("remove it"));
    }

    #[test]
    fn a_new_entry_is_itself_a_breach() {
        let list = "[functions]\n\"crates/data/src/a.rs::long\" = 101\n";
        let text = long_function(101);
        let tree =
            SourceTree::new(&[("crates/data/src/a.rs", &text), ("xtask/ratchet.toml", list)]);
        let found = shown(&find_violations(&tree).unwrap());
        assert_eq!(found, ["xtask/ratchet.toml:0 size: expected at most 0 entries, got 1"]);
    }
}
