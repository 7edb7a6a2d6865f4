//! What a configuration may say: every key with its meaning, type, default and range, and the check
//! of a written one against it. Knows no types of [`crate::JobConfig`]; a test compares the two.

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
    /// Its dotted path; `[]` stands for each entry of a list, `*` for any name.
    pub path: &'static str,
    /// What its value is.
    pub kind: ValueKind,
    /// Whether it must be there.
    pub need: Need,
    /// Which values are allowed, where its kind does not say.
    pub range: &'static str,
    pub meaning: &'static str,
    /// How it is written.
    pub example: &'static str,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    Integer,
    Number,
    Boolean,
    Text,
    /// One of some texts.
    Choice(&'static [&'static str]),
    /// A list of whole numbers.
    Integers,
    /// A list of texts.
    Texts,
    /// A list of some texts.
    Choices(&'static [&'static str]),
    /// A whole number, or `"auto"`.
    Rows,
    /// Keys of its own.
    Section,
    /// A list of entries with keys of their own.
    Sections,
    /// An entry with keys of its own for each name.
    SectionPerName,
}

/// Whether a key must be there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// Always, within its section.
    Always,
    Never {
        /// What holds without it.
        default: &'static str,
    },
    /// Only with one value of the section's `kind` or `mode`.
    With {
        tag: &'static str,
        /// Whether it must be there then.
        is_required: bool,
        /// What holds without it.
        default: &'static str,
    },
}

impl ConfigKey {
    /// The last part of its path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// The path of the section it is in; empty for a section itself.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// What its value may be: `an integer of at least 1`, `"dot", "cat" or "dcn_v2"`.
    #[must_use]
    pub fn expected(&self) -> String {
        let kind = self.kind.to_string();
        let range = match self.kind {
            ValueKind::Rows => "",
            _ => self.range,
        };
        if range.is_empty() { kind } else { format!("{kind}, {range}") }
    }

    /// What holds without it; empty where there is nothing to say.
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

/// `"a", "b" or "c"`.
fn either(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
    listed(&quoted)
}

/// `a, b or c`.
pub(crate) fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// The keys directly in `section`.
pub fn keys_of(section: &str) -> impl Iterator<Item = &'static ConfigKey> {
    KEYS.iter().filter(move |key| key.section() == section)
}

/// The keys that `text` may mean: the one of that path, or all whose path ends so. `[]` may be left
/// out.
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

/// The name among `known` that `name` was probably meant to be.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|known| (distance(name, known), known)).min()?;
    let most = 2.max(name.chars().count() / 3);
    (best.0 <= most).then_some(best.1)
}

/// Levenshtein's distance: letters to change, add or remove.
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
