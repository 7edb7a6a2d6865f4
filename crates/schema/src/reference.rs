//! The reference of all configuration keys: the meaning, type, default and range of each.
//! Configurations are checked against it, and a test compares it with the types of
//! [`crate::JobConfig`].

mod check;
mod edit;
mod keys;

use std::fmt;

pub(crate) use check::{KeyLines, check};
pub(crate) use edit::set;
pub use keys::KEYS;

/// A key of a configuration, as documentation and error messages describe it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigKey {
    /// Dotted path of the key, in which `[]` stands for each entry of a list and `*` for any name.
    pub path: &'static str,
    pub kind: ValueKind,
    pub need: Need,
    /// Allowed values, if the kind does not determine them.
    pub range: &'static str,
    pub meaning: &'static str,
    pub example: &'static str,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    Integer,
    Number,
    Boolean,
    Text,
    /// A text that is one of the listed choices.
    Choice(&'static [&'static str]),
    Integers,
    Texts,
    /// A list of texts, each of which is one of the listed choices.
    Choices(&'static [&'static str]),
    /// An integer, or the text `auto`.
    Rows,
    /// A section with keys of its own.
    Section,
    /// A list of entries with their own keys.
    Sections,
    /// A section with one entry per name. Each entry has keys of its own.
    SectionPerName,
    /// A section with one positive integer per name.
    IntegerPerName,
}

/// The condition under which a key is required.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// The key is required wherever its section is present.
    Always,
    Never {
        /// Description of the behavior if the key is omitted.
        default: &'static str,
    },
    /// The key is allowed only with one value of the section's `kind` or `mode`.
    With {
        tag: &'static str,
        /// Whether the key is required with that value of `kind` or `mode`.
        is_required: bool,
        /// Description of the behavior if the key is omitted.
        default: &'static str,
    },
}

impl ConfigKey {
    /// Returns the last part of the path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// Returns the path of the enclosing section, which is empty for a top-level section.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Describes the allowed values, for example `a number, 0 or more` or `"dot", "cat" or
    /// "dcn_v2"`.
    #[must_use]
    pub fn expected(&self) -> String {
        let kind = self.kind.to_string();
        let range = match self.kind {
            // The text for this kind already contains the range.
            ValueKind::Rows => "",
            _ => self.range,
        };
        if range.is_empty() { kind } else { format!("{kind}, {range}") }
    }

    /// Describes the behavior if the key is omitted. The text is empty if there is nothing to
    /// describe.
    #[must_use]
    pub fn default(&self) -> &'static str {
        match self.need {
            Need::Always => "",
            Need::Never { default } | Need::With { default, .. } => default,
        }
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer => out.write_str("an integer"),
            Self::Number => out.write_str("a number"),
            Self::Boolean => out.write_str("true or false"),
            Self::Text => out.write_str("text in quotes"),
            Self::Choice(choices) => out.write_str(&either(choices)),
            Self::Integers => out.write_str("a list of integers, such as [64, 16]"),
            Self::Texts => out.write_str("a list of texts, such as [\"a\", \"b\"]"),
            Self::Choices(choices) => write!(out, "a list of {}", either(choices)),
            Self::Rows => out.write_str("an integer of at least 1, or \"auto\""),
            Self::Section => out.write_str("a section of keys"),
            Self::Sections => out.write_str("a list of { … } entries"),
            Self::SectionPerName => out.write_str("a section with an entry per name"),
            Self::IntegerPerName => out.write_str("a section with a positive integer per name"),
        }
    }
}

/// Joins quoted choices for a message, such as `"a", "b" or "c"`.
fn either(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    listed(&quoted)
}

/// Joins items for a message, such as `a, b or c`.
#[must_use]
pub fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// Returns the keys directly in `section`, without the keys of nested sections.
pub fn keys_of(section: &str) -> impl Iterator<Item = &'static ConfigKey> {
    KEYS.iter().filter(move |key| key.section() == section)
}

/// Returns the configuration keys that `text` may refer to: the key whose path is `text`, or else
/// all keys whose path ends with `text`. The `[]` of array elements may be omitted.
#[must_use]
pub fn find(text: &str) -> Vec<&'static ConfigKey> {
    let plain = |path: &str| path.replace("[]", "");
    let wanted = plain(text);
    if let Some(key) = KEYS.iter().find(|key| plain(key.path) == wanted) {
        return vec![key];
    }
    // Whole parts of a path must match, so that `rows` does not find `shuffle_rows`.
    let end = format!(".{wanted}");
    KEYS.iter().filter(|key| plain(key.path).ends_with(&end)).collect()
}

/// Returns the name among `known` that is most similar to `name`, or `None` if all differ too much.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|known| (distance(name, known), known)).min()?;
    // At most a third of the letters may differ, so that unrelated names are not suggested.
    let most = 2.max(name.chars().count() / 3);
    (best.0 <= most).then_some(best.1)
}

/// Computes the Levenshtein distance: the number of letters to change, add or remove.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // One row of the distance matrix is enough. `diagonal` keeps the value that an update of the
    // row overwrites.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
