//! Shortens the names of kernels so that they fit into a table and stay different.

use std::collections::{BTreeMap, BTreeSet};

/// Shortens a C++ name to its last part, without template arguments and parameters. Names that are
/// not of this form stay unchanged.
///
/// For example, `void at::native::(anonymous namespace)::cat<float>(float*)` becomes `cat`. If the
/// last part is not specific, as in `cutlass::Kernel<cutlass_80_gemm>(Params)`, the first template
/// argument is taken.
pub fn short_name(name: &str) -> &str {
    let name = plain_name(name);
    if name.starts_with("Mem") || !name.contains(['<', '(']) {
        return name;
    }
    let (short, arguments) = last_part(name);
    if matches!(short, "Kernel" | "Kernel2" | "kernel" | "device_kernel") {
        let first = arguments.split([',', '<', '>', '(', ' ']).find(|part| !part.is_empty());
        return first.map_or(short, |first| first.rsplit("::").next().unwrap_or(first));
    }
    if short.is_empty() { name } else { short }
}

/// Maximum length, in characters, of the part that distinguishes kernels with the same short name.
const DIFFERENCE: usize = 48;

/// Returns a label for each of some distinct names. A label is the short name, followed in brackets
/// by what differs if several names have the same short name.
///
/// # Cost
/// The cost is `O(n log n)` in the names, times their length.
pub fn labels<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let mut alike: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        alike.entry(short_name(name)).or_default().push(at);
    }
    let mut labels = vec![String::new(); names.len()];
    for (short, places) in alike {
        if let [one] = places[..] {
            short.clone_into(&mut labels[one]);
            continue;
        }
        let same: Vec<&str> = places.iter().map(|at| names[*at]).collect();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (at, difference) in places.into_iter().zip(differences(&same)) {
            let label = match difference.is_empty() || difference == short {
                true => short.to_owned(),
                false => format!("{short} [{difference}]"),
            };
            // Differences that were shortened may be equal, so a number keeps the labels apart.
            let count = seen.entry(label.clone()).or_default();
            *count += 1;
            labels[at] = if *count == 1 { label } else { format!("{label} #{count}") };
        }
    }
    labels
}

/// Returns the part that distinguishes each name, which is the first differing word if that is
/// unique, or else the name without its common beginning and end.
fn differences(names: &[&str]) -> Vec<String> {
    const UNNAMED: &str = "(anonymous namespace)::";
    let all: Vec<Vec<char>> =
        names.iter().map(|name| name.replace(UNNAMED, "").chars().collect()).collect();
    let least = all.iter().map(Vec::len).min().unwrap_or_default();
    let is_same =
        |letter: &dyn Fn(&[char]) -> char| all.iter().all(|name| letter(name) == letter(&all[0]));
    let first = (0..least).find(|at| !is_same(&|name| name[*at])).unwrap_or(least);
    // Cut at whole words by going back to the last character that does not belong to a word.
    let is_of_word = |letter: &char| letter.is_alphanumeric() || *letter == '_';
    let begin = all[0][..first].iter().rposition(|letter| !is_of_word(letter));
    let begin = begin.map_or(0, |at| at + 1);
    let behind = (0..least - first).find(|at| !is_same(&|name| name[name.len() - 1 - at]));
    let behind = behind.unwrap_or(least - first);
    let word = |name: &Vec<char>| {
        let rest = name[begin..].iter().skip_while(|letter| !is_of_word(letter));
        rest.take_while(|letter| is_of_word(letter)).collect::<String>()
    };
    let words: Vec<String> = all.iter().map(word).collect();
    let distinct: BTreeSet<&String> = words.iter().collect();
    if distinct.len() == words.len() && words.iter().all(|word| word.len() <= DIFFERENCE) {
        return words;
    }
    let text = |name: &Vec<char>| {
        let rest = &name[begin..name.len() - behind];
        let end = if rest.len() > DIFFERENCE { "…" } else { "" };
        rest.iter().take(DIFFERENCE).collect::<String>() + end
    };
    all.iter().map(text).collect()
}

/// Suffix of collectives of rowmill's own trainer, by which tools that classify by name recognize
/// communication (decision 0006).
pub const IN_PLACE: &str = " (in place of ncclKernel)";

/// Removes the suffix that is meant for other tools.
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix(IN_PLACE).unwrap_or(name)
}

/// Returns the last part of a name, and the text after the opening bracket that follows it.
fn last_part(name: &str) -> (&str, &str) {
    const UNNAMED: &[u8] = b"(anonymous namespace)::";
    let bytes = name.as_bytes();
    let (mut from, mut to, mut nested, mut at) = (0, bytes.len(), 0usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'(' if nested == 0 && bytes[at..].starts_with(UNNAMED) => {
                from = at + UNNAMED.len();
                at = from - 1;
            }
            b'(' if nested == 0 => {
                to = to.min(at);
                break;
            }
            b'<' | b'{' | b'[' => {
                if nested == 0 {
                    to = to.min(at);
                }
                nested += 1;
            }
            b'>' | b'}' | b']' => nested = nested.saturating_sub(1),
            // Everything before this character belongs to a namespace or a result type.
            b':' | b' ' if nested == 0 && at + 1 < bytes.len() => {
                (from, to) = (at + 1, bytes.len());
            }
            _ => {}
        }
        at += 1;
    }
    // All cuts are next to ASCII characters, so they are at character boundaries.
    let short = name.get(from..to.max(from)).unwrap_or(name).trim();
    (short, name.get(to.max(from) + 1..).unwrap_or_default())
}
