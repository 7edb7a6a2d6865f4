//! `cargo xtask tidy --counts` prints measures of readability as one table by package. The table is
//! only printed; the ratchet limits the numbers that may not grow.

use crate::mask::mask;
use crate::tidy::count::Count;
use crate::tidy::item::{ItemKind, find_items};
use crate::tidy::source::{Sources, is_test_file, without_tests};
use crate::tree::SourceTree;

/// Columns of the table that show counts of the ratchet, each with its heading and the name of the
/// count.
const COUNTED: [(&str, &str); 4] =
    [("circles", "circles"), ("tuples", "tuples"), ("of", "of"), ("short", "short_comments")];

/// Goals for the whole workspace, in the order of the columns.
const GOALS: [&str; 8] = ["≤ 20", "≤ 40", "0", "0", "", "≥ 12", "≥ 2.0", "≥ 9.0"];

/// The measures of readability of one package, or of several.
#[derive(Clone, Default)]
struct Measure {
    counted: [usize; 4],
    /// Number of lines of Rust outside tests, including blank lines and comments.
    lines: usize,
    /// Number of lines of Rust outside tests that contain code.
    code_lines: usize,
    /// Number of lines outside tests that are a `//` comment and not documentation.
    comment_lines: usize,
    /// Number of words of each item's doc comment, without help texts.
    doc_words: Vec<usize>,
    /// Length of the name of each function.
    name_lengths: Vec<usize>,
}

/// Formats one row per package, one row for the workspace, and the goals below.
pub fn table(tree: &SourceTree, sources: &Sources, counts: &[Count]) -> String {
    let headings = COUNTED.map(|(heading, _)| heading).into_iter();
    let headings = headings.chain(["lines", "doc words", "// %", "name length"]);
    let mut rows = vec![row("package", headings.map(str::to_owned))];
    let mut total = Measure::default();
    for package in sources.keys() {
        let measure = measure(tree, sources, package, counts);
        rows.push(row(package, measure.cells()));
        total.add(measure);
    }
    rows.push(row("workspace", total.cells()));
    rows.push(row("goal", GOALS.map(str::to_owned)));
    rows.concat()
}

fn row(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells = cells.into_iter().map(|cell| format!(" {cell:>12}")).collect::<String>();
    format!("{name:<20}{cells}\n")
}

fn measure(tree: &SourceTree, sources: &Sources, package: &str, counts: &[Count]) -> Measure {
    let counted = COUNTED.map(|(_, table)| {
        let count = counts.iter().find(|count| count.table == table);
        count.and_then(|count| count.places.get(package)).map_or(0, Vec::len)
    });
    let mut measure = Measure { counted, ..Measure::default() };
    let files = sources.get(package).into_iter().flatten();
    for (path, file) in files.filter(|(path, _)| !is_test_file(path)) {
        let text = without_tests(tree.text(path).unwrap_or_default());
        // Strings are masked, so that `//` in an address or a script is not taken for a comment.
        let code = mask(&text).code;
        // In `text`, tests are blanked out. A line belongs to a test if it is blank in `text` but
        // not in the file.
        let blanked = tree.text(path).unwrap_or_default().lines().zip(text.lines());
        measure.lines += blanked.filter(|(before, after)| before.len() == after.len()).count();
        measure.code_lines += code.lines().filter(|line| !line.trim().is_empty()).count();
        let is_comment = |line: &&str| {
            let line = line.trim_start();
            line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!")
        };
        measure.comment_lines += text.lines().filter(is_comment).count();
        for item in find_items(file) {
            if item.kind == ItemKind::Function {
                measure.name_lengths.push(item.name.chars().count());
            }
            if !item.doc.is_empty() && !item.is_help {
                measure.doc_words.push(item.doc.split_whitespace().count());
            }
        }
    }
    measure
}

impl Measure {
    fn add(&mut self, other: Self) {
        for (sum, count) in self.counted.iter_mut().zip(other.counted) {
            *sum += count;
        }
        self.lines += other.lines;
        self.code_lines += other.code_lines;
        self.comment_lines += other.comment_lines;
        self.doc_words.extend(other.doc_words);
        self.name_lengths.extend(other.name_lengths);
    }

    fn cells(&self) -> Vec<String> {
        let mut doc_words = self.doc_words.clone();
        doc_words.sort_unstable();
        let median = doc_words.get(doc_words.len() / 2).copied().unwrap_or_default();
        let ratio = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        let share = 100.0 * ratio(self.comment_lines, self.code_lines + self.comment_lines);
        let length = ratio(self.name_lengths.iter().sum(), self.name_lengths.len());
        let mut cells = self.counted.map(|count| count.to_string()).to_vec();
        cells.extend([self.lines, median].map(|count| count.to_string()));
        cells.extend([share, length].map(|mean| format!("{mean:.1}")));
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::tidy::{count_all, source};
    use crate::tree::SourceTree;

    #[test]
    fn the_table_has_a_row_per_package_and_one_of_all() {
        let text = "//! File.\n\n/// Reads the rows of one file.\npub fn read_rows() {\n    \
                    // Why.\n    of();\n}\n\n/// The rank.\nfn of() {}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn long_name() {}\n}\n";
        let tree = SourceTree::new(&[
            ("crates/data/Cargo.toml", ""),
            ("crates/data/src/lib.rs", text),
            ("xtask/Cargo.toml", ""),
        ]);
        let sources = source::parse(&tree).unwrap();
        let table = table(&tree, &sources, &count_all(&tree, &sources));
        let words = |line: usize| -> Vec<&str> {
            table.lines().nth(line).unwrap().split_whitespace().collect()
        };
        let expected = ["0", "0", "1", "1", "11", "6", "20.0", "5.5"];
        assert_eq!(words(1), [&["crates/data"], &expected[..]].concat());
        assert_eq!(words(3), [&["workspace"], &expected[..]].concat());
        assert_eq!(table.lines().count(), 5);
    }
}
