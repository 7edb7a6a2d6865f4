//! Checks that `unsafe` appears only in listed places, that unsafe functions document the duties of
//! a caller, and that each use names the fact that makes it sound.

use crate::mask::{line_of, mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "unsafe";

const ADDRESSES: [&str; 3] =
    ["crates/device/src/", "crates/python/src/", "crates/comm/src/mpi/ffi.rs"];
/// Phrases of SAFETY comments that refer to a check without naming the fact that was checked.
const EMPTY: [&str; 7] = [
    "SAFETY: see ",
    "SAFETY: as ",
    "SAFETY: the caller vouches.",
    "SAFETY: the caller's ",
    "; the caller's promise",
    "the caller's contract.",
    "the trait's contract.",
];

/// Finds `unsafe` in places that are not listed, and `unsafe` without a reason.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        let masked = mask(text);
        if !ADDRESSES.iter().any(|folder| path.starts_with(folder)) {
            for at in words(&masked.code, "unsafe") {
                let problem =
                    "`unsafe` belongs to device and comm/mpi/ffi.rs; got it here".to_owned();
                found.push(Violation::new(RULE, path, line_of(&masked.code, at), problem));
            }
            continue;
        }
        found.extend(find_undocumented(path, text, &masked.code));
        found.extend(find_empty_reasons(path, &masked.comments));
    }
    found
}

/// Finds unsafe functions without `# Safety` in their documentation. For an implementation of a
/// trait, the documentation of the trait counts.
fn find_undocumented(path: &str, text: &str, code: &str) -> Vec<Violation> {
    let (lines, code): (Vec<&str>, Vec<&str>) = (text.lines().collect(), code.lines().collect());
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate() {
        let Some(name) = declared_name(line) else { continue };
        let owner = enclosing_item(&code, at);
        // `impl Trait for Type` is recognized by its `for`.
        let is_of_trait = owner.is_some_and(|owner| code[owner].contains(" for "));
        let has_safety =
            |item: usize| item_documentation(&lines, item).any(|line| line.contains("# Safety"));
        if is_of_trait || has_safety(at) || owner.is_some_and(has_safety) {
            continue;
        }
        let problem = format!("expected `# Safety` in the documentation of `{name}`");
        found.push(Violation::new(RULE, path, at + 1, problem));
    }
    found
}

/// Returns the name of the unsafe function that a line declares.
fn declared_name(line: &str) -> Option<&str> {
    let (before, name) = line.split_once("unsafe fn ")?;
    let before = before.trim();
    // Other text before `unsafe fn` means a function type, which has no documentation of its own.
    if !(before.is_empty() || before.starts_with("pub") || before.ends_with("const")) {
        return None;
    }
    name.split(['(', '<']).next()
}

/// Returns the line of the trait or implementation around a line.
fn enclosing_item(code: &[&str], at: usize) -> Option<usize> {
    let mut limit = indent(code[at]);
    for line in (0..at).rev().filter(|&line| !code[line].trim().is_empty()) {
        if indent(code[line]) < limit {
            limit = indent(code[line]);
            let words: Vec<&str> = code[line].split([' ', '<']).filter(|w| !w.is_empty()).collect();
            if words.contains(&"trait") || words.contains(&"impl") {
                return Some(line);
            }
        }
    }
    None
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the lines of documentation and attributes before an item.
fn item_documentation<'a>(lines: &[&'a str], item: usize) -> impl Iterator<Item = &'a str> {
    let is_before = |line: &&str| line.starts_with("///") || line.starts_with("#[");
    lines[..item].iter().rev().map(|line| line.trim()).take_while(is_before)
}

/// Finds SAFETY comments that name no fact.
fn find_empty_reasons(path: &str, comments: &str) -> Vec<Violation> {
    let lines = comments.lines().enumerate();
    let is_empty = |line: &str| EMPTY.iter().any(|words| line.contains(words));
    let found = lines.filter(|(_, line)| line.contains("SAFETY:") && is_empty(line));
    let problem = "expected the fact and who checked it, got a phrase";
    found.map(|(at, _)| Violation::new(RULE, path, at + 1, problem.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn check_device(text: &str) -> Vec<String> {
        shown(&find_violations(&SourceTree::new(&[("crates/device/src/a.rs", text)])))
    }

    #[test]
    fn unsafe_elsewhere_is_refused() {
        let text = "//! about unsafe\n#![expect(unsafe_code)]\nfn f() { unsafe { g() } }";
        let found = shown(&find_violations(&SourceTree::new(&[("crates/data/src/a.rs", text)])));
        let expected = "crates/data/src/a.rs:3 unsafe: `unsafe` belongs to device and \
                        comm/mpi/ffi.rs; got it here";
        assert_eq!(found, [expected]);
        for path in ["crates/device/src/a.rs", "crates/comm/src/mpi/ffi.rs"] {
            assert_eq!(find_violations(&SourceTree::new(&[(path, text)])), []);
        }
    }

    #[test]
    fn an_unsafe_function_or_its_trait_has_a_safety_section() {
        let documented = "/// # Safety\n/// Long enough.\n#[inline]\npub unsafe fn f() {}";
        assert_eq!(check_device(documented), [""; 0]);
        assert_eq!(
            check_device("/// # Safety\n/// All.\ntrait T {\n    unsafe fn f();\n}"),
            [""; 0]
        );
        assert_eq!(check_device("impl T for u8 {\n    unsafe fn f() {}\n}"), [""; 0]);
        let own = "impl<V: T> Sum<V> {\n    /// Adds.\n    pub unsafe fn add<W>() {}\n}";
        let problem = "expected `# Safety` in the documentation of `add`";
        assert_eq!(check_device(own), [format!("crates/device/src/a.rs:3 unsafe: {problem}")]);
        assert_eq!(check_device("type F = unsafe fn();\n"), [""; 0]);
    }

    #[test]
    fn a_phrase_without_a_fact_is_refused() {
        for phrase in ["see above.", "the caller's promise.", "checked; the caller's promise."] {
            let text = format!("fn f() {{\n    // SAFETY: {phrase}\n    unsafe {{ g() }}\n}}");
            let problem = "expected the fact and who checked it, got a phrase";
            let expected = format!("crates/device/src/a.rs:2 unsafe: {problem}");
            assert_eq!(check_device(&text), [expected]);
        }
        assert_eq!(check_device("// SAFETY: `at < len`, as `new` checked.\n"), [""; 0]);
    }
}
