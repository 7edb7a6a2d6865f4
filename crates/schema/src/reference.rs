//! The reference of all configuration keys with meaning, type, default and range, and the check of
//! a configuration against it. A test compares it with the types of [`crate::JobConfig`].

mod check;
mod edit;
mod keys;

use std::fmt;

pub(crate) use check::{KeyLines, check};
pub(crate) use edit::set;
pub use keys::KEYS;

/// A key of a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigKey {
    /// Dotted path; `[]` represents each entry of a list, `*` any name.
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
    /// One of these texts.
    Choice(&'static [&'static str]),
    Integers,
    Texts,
    /// A list of these texts.
    Choices(&'static [&'static str]),
    /// An integer, or `"auto"`.
    Rows,
    /// A section of keys.
    Section,
    /// A list of entries with their own keys.
    Sections,
    /// One entry with its own keys per name.
    SectionPerName,
}

/// The condition under which a key is required.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// Required in its section.
    Always,
    Never {
        /// The behavior without the key.
        default: &'static str,
    },
    /// Only allowed with one value of the section's `kind` or `mode`.
    With {
        tag: &'static str,
        /// Whether the key is required in that case.
        is_required: bool,
        /// The behavior without the key.
        default: &'static str,
    },
}

impl ConfigKey {
    /// Returns the last part of the path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// Returns the path of the enclosing section; empty for a section itself.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Describes the allowed values: `an integer of at least 1`, `"dot", "cat" or "dcn_v2"`.
    #[must_use]
    pub fn expected(&self) -> String {
        let kind = self.kind.to_string();
        let range = match self.kind {
            ValueKind::Rows => "",
            _ => self.range,
        };
        if range.is_empty() { kind } else { format!("{kind}, {range}") }
    }

    /// Describes the behavior without the key; empty if there is nothing to describe.
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
        }
    }
}

/// Formats `"a", "b" or "c"`.
fn either(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    listed(&quoted)
}

/// Formats `a, b or c`.
pub(crate) fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// Returns the keys directly in `section`.
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
    let end = format!(".{wanted}");
    KEYS.iter().filter(|key| plain(key.path).ends_with(&end)).collect()
}

/// Returns the most similar name among `known`.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|known| (distance(name, known), known)).min()?;
    let most = 2.max(name.chars().count() / 3);
    (best.0 <= most).then_some(best.1)
}

/// Computes Levenshtein's distance: letters to change, add or remove.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
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
