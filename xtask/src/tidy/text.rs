//! Checks the form of every source: its opening comment, its lines, its to-dos and its tests.

use std::collections::BTreeMap;

use crate::mask::{mask, words};
use crate::tidy::violation::Violation;
use crate::tree::SourceTree;

const RULE: &str = "text";
/// Maximum length of a line in characters.
pub const COLUMNS: usize = 100;
const TO_DO: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Checks the form of every Rust source.
pub fn find_violations(tree: &SourceTree) -> Vec<Violation> {
    let mut found = find_test_binaries(tree);
    for (path, text) in tree.rust() {
        let mut report = |line, problem| found.push(Violation::new(RULE, path, line, problem));
        if !text.starts_with("//!") && !path.ends_with("/tests.rs") {
            report(1, "expected `//!`: what the file is for".to_owned());
        }
        let masked = mask(text);
        let lines = text.lines().zip(masked.comments.lines()).zip(masked.code.lines());
        for (number, ((line, comment), code)) in lines.enumerate() {
            if let Some(problem) = judge_line(line, comment, code) {
                report(number + 1, problem);
            }
            if code.trim_start().starts_with("#[ignore") {
                report(number + 1, "tests skip loudly, with a counted line; got #[ignore]".into());
            }
        }
    }
    found
}

fn judge_line(line: &str, comment: &str, code: &str) -> Option<String> {
    if line.ends_with([' ', '\t']) {
        return Some("trailing blanks".to_owned());
    }
    let columns = line.chars().count();
    // Lines with strings and links may be longer, because breaking these makes them harder to read.
    let in_string = line.contains('"') || code.trim().is_empty() && comment.trim().is_empty();
    if columns > COLUMNS && !in_string && !line.contains("http") {
        return Some(format!("expected at most {COLUMNS} columns, got {columns}"));
    }
    let to_do = TO_DO.iter().find(|word| words(comment, word).next().is_some())?;
    let issue =
        comment.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    (!issue).then(|| format!("{to_do} without an issue number"))
}

/// Finds further binaries of integration tests, because each of them links the whole crate again.
fn find_test_binaries(tree: &SourceTree) -> Vec<Violation> {
    let mut binaries: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, _) in tree.rust() {
        let Some((package, own)) = path.split_once("/tests/") else { continue };
        let is_binary = !own.contains('/') || own.ends_with("/main.rs");
        if is_binary && !package.contains("/src") {
            binaries.entry(package).or_default().push(path);
        }
    }
    let mut found = Vec::new();
    for (package, paths) in binaries {
        if paths != [format!("{package}/tests/it/main.rs")] {
            let problem = format!("expected tests/it/main.rs alone, got {paths:?}");
            found.push(Violation::new(RULE, package, 0, problem));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::find_violations;
    use crate::tidy::violation::shown;
    use crate::tree::SourceTree;

    fn found(text: &str) -> Vec<String> {
        shown(&find_violations(&SourceTree::new(&[("crates/a/src/b.rs", text)])))
    }

    fn expect(text: &str, problem: &str) {
        let got = found(text);
        assert!(got.len() == 1 && got[0].ends_with(problem), "{got:?}");
    }

    #[test]
    fn a_file_opens_with_its_purpose() {
        expect("use a;\n", "what the file is for");
        assert_eq!(found("//! Owns a.\n"), Vec::<String>::new());
        assert_eq!(find_violations(&SourceTree::new(&[("crates/a/src/b/tests.rs", "use a;")])), []);
    }

    #[test]
    fn lines_are_short_and_end_where_they_end() {
        expect("//! x\nlet a; \n", ":2 text: trailing blanks");
        expect(
            &format!("//! x\n{}\n", "y".repeat(101)),
            ":2 text: expected at most 100 columns, got 101",
        );
        assert_eq!(found(&format!("//! x\n\"{}\"\n", "y".repeat(101))), Vec::<String>::new());
    }

    #[test]
    fn a_to_do_names_its_issue() {
        expect("//! x\n// TODO: later\n", "TODO without an issue number");
        assert_eq!(found("//! x\n// TODO(#12): later\nlet a = \"TODO\";\n"), Vec::<String>::new());
    }

    #[test]
    fn tests_are_neither_ignored_nor_scattered() {
        expect("//! x\n#[ignore = \"slow\"]\nfn f() {}\n", "got #[ignore]");
        let files = [("crates/a/tests/b.rs", "//! x"), ("crates/a/tests/it/main.rs", "//! x")];
        assert_eq!(find_violations(&SourceTree::new(&files)).len(), 1);
        assert_eq!(find_violations(&SourceTree::new(&files[1..])), []);
    }
}
