//! `cargo xtask size` prints the number of lines per crate and file. `tidy` checks the limits of
//! sizes.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::function;
use crate::mask::mask;
use crate::tidy::source::{is_test_file, without_tests};
use crate::tree::{self, SourceTree};

pub const HELP: &str = "\
Lines per crate and file, and the longest functions.

Usage: cargo xtask size [--files N] [--functions N]

Options:
  --files N      how many of the longest files to show [default: 20]
  --functions N  how many of the longest functions to show [default: 15]

`lines` are all lines; `code` leaves out blank lines and comments; `tests` are the lines of code in
test files and behind `#[cfg(test)]`, a part of `code`.";

/// Numbers of lines of one file, or their sums over several files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LineCount {
    all: usize,
    code: usize,
    tests: usize,
}

impl std::ops::AddAssign for LineCount {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.code += other.code;
        self.tests += other.tests;
    }
}

/// Prints the tables of crates, longest files and longest functions.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let (files, functions) = parse_arguments(arguments)?;
    let tree = SourceTree::read(&tree::root())?;
    print_crates(&tree);
    print_files(&tree, files);
    print_functions(&tree, functions);
    Ok(())
}

fn parse_arguments(arguments: &[String]) -> Result<(usize, usize), Error> {
    let (mut files, mut functions) = (20, 15);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let target = match argument.as_str() {
            "--files" => &mut files,
            "--functions" => &mut functions,
            _ => return Err(usage(format!("unknown argument {argument:?}"))),
        };
        let value = rest.next().and_then(|value| value.parse().ok());
        *target = value.ok_or_else(|| usage(format!("{argument} expects a number")))?;
    }
    Ok((files, functions))
}

fn usage(problem: String) -> Error {
    Error::Usage { task: "size", problem }
}

fn count_lines(path: &str, text: &str) -> LineCount {
    let count = |text: &str| mask(text).code.lines().filter(|line| !line.trim().is_empty()).count();
    let product = if is_test_file(path) { 0 } else { count(&without_tests(text)) };
    let code = count(text);
    LineCount { all: text.lines().count(), code, tests: code - product }
}

fn print_crates(tree: &SourceTree) {
    let mut crates: BTreeMap<&str, (usize, LineCount)> = BTreeMap::new();
    let mut total = (0, LineCount::default());
    for (path, text) in tree.rust() {
        let own = path.strip_prefix("crates/").unwrap_or(path);
        let name = own.split('/').next().unwrap_or(own);
        let lines = count_lines(path, text);
        for entry in [crates.entry(name).or_default(), &mut total] {
            entry.0 += 1;
            entry.1 += lines;
        }
    }
    println!("{:<10} {:>6} {:>7} {:>7} {:>7}", "crate", "files", "lines", "code", "tests");
    for (name, (files, lines)) in crates.iter().chain([(&"total", &total)]) {
        println!("{name:<10} {files:>6} {:>7} {:>7} {:>7}", lines.all, lines.code, lines.tests);
    }
}

fn print_files(tree: &SourceTree, most: usize) {
    let mut files: Vec<_> =
        tree.rust().map(|(path, text)| (count_lines(path, text), path)).collect();
    files.sort_by_key(|(lines, path)| (std::cmp::Reverse(lines.all), *path));
    println!("\n{:>7} {:>7} {:>7}  longest files", "lines", "code", "tests");
    for (lines, path) in files.into_iter().take(most) {
        println!("{:>7} {:>7} {:>7}  {path}", lines.all, lines.code, lines.tests);
    }
}

fn print_functions(tree: &SourceTree, most: usize) {
    let mut functions = Vec::new();
    for (path, text) in tree.rust() {
        let found = function::find_functions(&mask(text).code);
        functions.extend(found.into_iter().map(|function| (path, function)));
    }
    functions.sort_by_key(|(path, function)| (std::cmp::Reverse(function.length), *path));
    println!("\n{:>7} {:>10}  longest functions", "code", "parameters");
    for (path, function) in functions.into_iter().take(most) {
        let place = format!("{path}:{} {}", function.line, function.name);
        println!("{:>7} {:>10}  {place}", function.length, function.parameters);
    }
}

#[cfg(test)]
mod tests {
    use super::{LineCount, count_lines};

    #[test]
    fn lines_of_tests_are_counted_apart() {
        let text = "//! x\n\nfn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(count_lines("crates/a/src/b.rs", text), LineCount { all: 6, code: 4, tests: 3 });
        assert_eq!(count_lines("crates/a/tests/it/main.rs", "//! x\nfn a() {}").tests, 1);
    }

    #[test]
    fn numbers_are_demanded() {
        let parse =
            |text: &str| super::parse_arguments(&[String::from("--files"), String::from(text)]);
        assert_eq!(parse("7").unwrap(), (7, 15));
        assert!(parse("many").unwrap_err().to_string().contains("--files expects a number"));
    }
}
