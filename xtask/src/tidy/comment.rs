//! Counts comments that a stranger would not understand. Types, traits and public functions need a
//! doc comment, which has more than three words and does not begin in the middle of a sentence. No
//! comment negates by `is no`.
//!
//! Only the form of a comment is checked. Whether a comment is true and gives the reason is for
//! reviewers.

use syn::File;

use crate::mask::mask;
use crate::tidy::count::{Count, Places};
use crate::tidy::item::{Item, ItemKind, find_items};
use crate::tidy::source::{Sources, is_test_file};
use crate::tree::SourceTree;

const SHORT_WORDS: usize = 3;
const HEADLESS_STARTS: [&str; 6] = ["of ", "those ", "the same", "with them", "none", "`none`"];
/// Words that may follow "is no" in a comment, as in "is no longer". Before any other word, "is no" is
/// reported, because "is not" is plainer.
const COMPARISONS: &str =
    "longer more less fewer other better worse larger smaller faster slower later";
/// Words of a comment that only gives a unit, such as "Bytes per second.".
const UNITS: &str = "nanoseconds microseconds milliseconds seconds minutes hours second minute hour \
     ns µs ms s bytes bits kib mib gib kb mb gb hertz mhz ghz watts percent flop flops rows \
     in per a of step";

/// Counts the comments that violate each of the four rules.
pub fn count(tree: &SourceTree, sources: &Sources) -> [Count; 4] {
    let items = |is_wrong: fn(&Item) -> bool| {
        collect_places(sources, |path, file| {
            let items = find_items(file).into_iter().filter(is_wrong);
            items.map(|item| format!("{path}::{}", item.name)).collect()
        })
    };
    let negations = collect_places(sources, |path, _| {
        let comments = mask(tree.text(path).unwrap_or_default()).comments;
        find_negations(&comments).iter().map(|line| format!("{path}:{line}")).collect()
    });
    let counts = [
        (
            "undocumented",
            "types, traits and public functions without a doc comment",
            items(is_undocumented),
        ),
        ("short_comments", "doc comments of three words or fewer", items(is_short)),
        (
            "headless_comments",
            "doc comments that begin with \"Of\", \"Those\", \"The same\", \"With them\" or \"None\"",
            items(is_headless),
        ),
        ("negations", "comments with \"is no\" or \"are none\" for \"is not\"", negations),
    ];
    counts.map(|(table, what, places)| Count { rule: "comment", table, what, places })
}

/// Collects the places that `find` returns for the files of each package, without test files.
fn collect_places(sources: &Sources, find: impl Fn(&str, &File) -> Vec<String>) -> Places {
    let find_all = |files: &Vec<(String, File)>| {
        let product = files.iter().filter(|(path, _)| !is_test_file(path));
        product.flat_map(|(path, file)| find(path, file)).collect()
    };
    sources.iter().map(|(package, files)| (package.clone(), find_all(files))).collect()
}

/// Whether an item must have a doc comment but does not have one.
fn is_undocumented(item: &Item) -> bool {
    let must = match item.kind {
        ItemKind::Type | ItemKind::Trait => true,
        ItemKind::Function => item.is_public,
        ItemKind::Closure | ItemKind::Value => false,
    };
    must && item.doc.is_empty()
}

/// Whether a doc comment has three words or fewer, unless it is a unit, a shape or a help text.
fn is_short(item: &Item) -> bool {
    let words = item.doc.split_whitespace();
    let is_unit = |word: &str| {
        let word = word.trim_end_matches(['.', ',', ';']).to_lowercase();
        UNITS.split(' ').any(|unit| unit == word)
    };
    let is_shape = item.doc.contains(['[', '×', '=', '<']);
    let is_exempt = item.doc.is_empty() || item.is_help || is_shape;
    !is_exempt && words.clone().count() <= SHORT_WORDS && !words.clone().all(is_unit)
}

/// Whether a doc comment begins with a word that needs a noun before it.
fn is_headless(item: &Item) -> bool {
    let doc = item.doc.to_lowercase();
    let begins = |start: &&str| {
        let rest = doc.strip_prefix(*start);
        rest.is_some_and(|rest| start.ends_with(' ') || !rest.starts_with(char::is_alphanumeric))
    };
    !item.is_help && HEADLESS_STARTS.iter().any(begins)
}

/// Returns the lines, counted from 1, of negations by `is no` or `are none`. "There is no cache"
/// and `is no longer used` are normal English and do not count.
fn find_negations(comments: &str) -> Vec<usize> {
    let words: Vec<(usize, String)> = comments
        .lines()
        .enumerate()
        .flat_map(|(at, line)| line.split_whitespace().map(move |word| (at + 1, word)))
        .filter(|(_, word)| !word.starts_with("//"))
        .map(|(line, word)| (line, word.to_lowercase()))
        .collect();
    let is_negation = |at: usize| {
        let word = |at: usize| words.get(at).map_or("", |(_, word)| word);
        let bare = word(at + 1).trim_end_matches(|c: char| !c.is_alphanumeric());
        let is_pair = matches!((word(at), bare), ("is", "no") | ("are", "none"));
        let follows_there = at > 0 && word(at - 1).ends_with("there");
        is_pair && !follows_there && !COMPARISONS.split(' ').any(|english| english == word(at + 2))
    };
    (0..words.len()).filter(|&at| is_negation(at)).map(|at| words[at].0).collect()
}

#[cfg(test)]
mod tests {
    use super::count;
    use crate::tidy::source;
    use crate::tree::SourceTree;

    /// Checks the places that each of the four rules reports for a text, without the path.
    fn check(text: &str, expected: [&[&str]; 4]) {
        let files = [("crates/data/Cargo.toml", ""), ("crates/data/src/a.rs", text)];
        let tree = SourceTree::new(&files);
        let found = count(&tree, &source::parse(&tree).unwrap()).map(|count| {
            let places = count.places["crates/data"].iter();
            let names = places.map(|place| place.trim_start_matches("crates/data/src/a.rs"));
            names.map(|name| name.trim_start_matches(':').to_owned()).collect::<Vec<_>>()
        });
        assert_eq!(
            found,
            expected.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>())
        );
    }

    #[test]
    fn types_traits_and_public_functions_are_documented() {
        let text = "struct A { b: u8 }\ntrait T { fn f(); }\npub fn g() {}\nfn h() {}\n\
                    impl A { pub fn i() {}\npub(crate) fn j() {} }\n\
                    #[cfg(test)]\nmod tests { struct B; }\n";
        check(text, [&["A", "T", "g", "i"], &[], &[], &[]]);
    }

    #[test]
    fn short_comments_are_units_shapes_or_help() {
        let text = "/// The rank.\nfn a() {}\n/// Bytes per second.\nfn b() {}\n\
                    /// Indices `[nnz]`.\nfn c() {}\n\
                    /// Counts rows of tables.\n#[derive(Debug, clap::Args)]\n\
                    struct D {\n/// The file.\nfile: u8 }\n";
        check(text, [&[], &["a"], &[], &[]]);
    }

    #[test]
    fn comments_begin_with_a_noun_and_negate_with_not() {
        let text = "/// Of the recorded step, in percent.\nfn a() {}\n\
                    /// `None` where the file is no trace.\nfn b() {}\n\
                    /// Offers rows; there is no cache, which is no longer read.\nfn c() {}\n\
                    // Numbers that are none.\n";
        check(text, [&[], &[], &["a", "b"], &["3", "7"]]);
    }
}
