//! Checks a configuration against the reference. Reports all problems at once, each with its line.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::{ConfigKey, KEYS, Need, ValueKind, keys_of, listed, nearest};

/// Line number of each key in a configuration text, by the key's path as messages show it.
#[derive(Default)]
pub(crate) struct KeyLines(BTreeMap<String, usize>);

impl KeyLines {
    /// Parses `text` and collects the lines of its keys. The result is empty if the text is not
    /// TOML.
    pub(crate) fn parse(text: &str) -> Self {
        let mut lines = Self::default();
        if let Ok(table) = DeTable::parse(text) {
            let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
            lines.add("", table.get_ref(), &ends);
        }
        lines
    }

    /// Adds the keys of `table`. `ends` are the offsets of the line ends in the text.
    fn add(&mut self, section: &str, table: &DeTable<'_>, ends: &[usize]) {
        let line_of = |place: usize| 1 + ends.partition_point(|&end| end < place);
        for (key, value) in table {
            let path = joined(section, key.get_ref());
            let line = line_of(key.span().start);
            self.0.insert(path.clone(), line);
            match value.get_ref() {
                DeValue::Table(table) => self.add(&path, table, ends),
                DeValue::Array(array) => {
                    for (at, entry) in array.iter().enumerate() {
                        if let DeValue::Table(table) = entry.get_ref() {
                            let path = format!("{path}[{at}]");
                            let line = line_of(entry.span().start);
                            self.0.insert(path.clone(), line);
                            self.add(&path, table, ends);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the key at `path`, because an override replaced its value and it no longer comes
    /// from the text. If a list contains the key, all entries of the list are removed.
    pub(crate) fn forget(&mut self, path: &str) {
        // Lines are stored by the index of an entry, while an override names the entry.
        let list = |known: &String| {
            known.split_once('[').is_some_and(|(list, _)| path.starts_with(&format!("{list}.")))
        };
        self.0.retain(|known, _| !known.starts_with(path) && !list(known));
    }

    /// Formats ` (line 7)`, or nothing if the text has no such key.
    fn line_note(&self, path: &str) -> String {
        self.0.get(path).map_or_else(String::new, |line| format!(" (line {line})"))
    }
}

fn joined(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// Checks `table` against the reference, and returns a message for each problem.
pub(crate) fn check(table: &Table, lines: &KeyLines) -> Vec<String> {
    let mut found = KeyProblems { lines, missing: Vec::new(), wrong: Vec::new() };
    found.section(table, "", "");
    // Missing keys come last, because a misspelled key often explains a missing one.
    found.wrong.extend(found.missing);
    found.wrong
}

/// Missing and invalid keys of a configuration, collected so that one message reports all.
struct KeyProblems<'a> {
    lines: &'a KeyLines,
    missing: Vec<String>,
    wrong: Vec<String>,
}

impl KeyProblems<'_> {
    /// Checks the keys of one section. `path` is the section's path in the reference, and `shown`
    /// is its path in messages.
    fn section(&mut self, table: &Table, path: &str, shown: &str) {
        for (name, value) in table {
            let here = joined(shown, name);
            let line = self.lines.line_note(&here);
            match key_of(path, name) {
                None => self.wrong.push(format!("{here}{line}: {}", unknown(path, name, table))),
                Some(key) => match tag_problem(key, table) {
                    Some(problem) => self.wrong.push(format!("{here}{line}: {problem}")),
                    None => self.value(key, value, &here),
                },
            }
        }
        for key in keys_of(path) {
            if !table.contains_key(key.name()) && is_required(key, table) {
                let here = joined(shown, key.name());
                self.missing(key, &here);
            }
        }
    }

    /// Reports a missing key. A missing section is reported as its required keys.
    fn missing(&mut self, key: &ConfigKey, here: &str) {
        let inside: Vec<&ConfigKey> =
            keys_of(key.path).filter(|inside| inside.need == Need::Always).collect();
        if key.kind != ValueKind::Section || inside.is_empty() {
            let line =
                self.lines.line_note(here.rsplit_once('.').map_or("", |(section, _)| section));
            let text = format!("{here} is missing{line}: expected {}", key.expected());
            let example = match key.kind {
                ValueKind::Sections => format!(", such as {}", key.example),
                _ => String::new(),
            };
            self.missing.push(text + &example);
        } else {
            inside.iter().for_each(|key| self.missing(key, &joined(here, key.name())));
        }
    }

    fn value(&mut self, key: &ConfigKey, value: &Value, here: &str) {
        let entry = format!("{}[]", key.path);
        match (key.kind, value) {
            (ValueKind::Section, Value::Table(table)) => self.section(table, key.path, here),
            (ValueKind::SectionPerName, Value::Table(table)) => {
                for (name, value) in table {
                    let here = joined(here, name);
                    match value {
                        Value::Table(table) => self.section(table, &entry_of_name(key), &here),
                        other => self.refuse("a section of keys".to_owned(), other, &here),
                    }
                }
            }
            (ValueKind::Sections, Value::Array(entries)) => {
                for (at, value) in entries.iter().enumerate() {
                    let here = format!("{here}[{at}]");
                    match value {
                        Value::Table(table) => self.section(table, &entry, &here),
                        other => self.refuse("an entry { … }".to_owned(), other, &here),
                    }
                }
            }
            // A negative integer is an error for every key with a range. Only placeholders for
            // missing ids may be negative, and their keys have no range.
            (_, Value::Integer(..0)) if !key.range.is_empty() => {
                self.refuse(key.expected(), value, here);
            }
            (kind, value) if fits(kind, value) => {}
            (_, value) => self.refuse(key.expected(), value, here),
        }
    }

    fn refuse(&mut self, expected: String, got: &Value, here: &str) {
        let line = self.lines.line_note(here);
        let hint = match got {
            Value::String(text) => close_choice(&expected, text),
            _ => String::new(),
        };
        self.wrong.push(format!("{here}{line}: expected {expected}, got {}{hint}", shown(got)));
    }
}

fn entry_of_name(key: &ConfigKey) -> String {
    format!("{}.*", key.path)
}

/// Proposes the expected choice that is most similar to `got`, as the end of an error message, such
/// as `; did you mean "adam"?`. If `got` is a choice itself, the value lacks only the brackets of a
/// list, and the proposal is `; did you mean ["row"]?`. Without a similar choice, returns no text.
fn close_choice(expected: &str, got: &str) -> String {
    let choices = expected.split('"').skip(1).step_by(2);
    let near = nearest(got, choices);
    match near {
        Some(same) if same == got => format!("; did you mean [{same:?}]?"),
        Some(near) => format!("; did you mean {near:?}?"),
        None => String::new(),
    }
}

/// Finds the key `name` in `section`, including names of earlier versions.
fn key_of(section: &str, name: &str) -> Option<&'static ConfigKey> {
    let name = match (section, name) {
        ("data.ids", "threshold") => "min_count",
        _ => name,
    };
    keys_of(section).find(|key| key.name() == name)
}

/// Returns the value of the section's key `kind`, `mode` or `layout`.
fn tag(table: &Table) -> Option<&str> {
    ["kind", "mode", "layout"].iter().find_map(|name| table.get(*name)).and_then(Value::as_str)
}

fn is_required(key: &ConfigKey, table: &Table) -> bool {
    match key.need {
        Need::Always => true,
        Need::Never { .. } => false,
        Need::With { tag: of, is_required, .. } => is_required && tag(table) == Some(of),
    }
}

/// Describes the problem of a key that is allowed only with another `kind` or `mode` of its
/// section.
fn tag_problem(key: &ConfigKey, table: &Table) -> Option<String> {
    let Need::With { tag: of, .. } = key.need else { return None };
    let got = tag(table).filter(|got| *got != of)?;
    Some(format!("not allowed with {got:?}, only with {of:?}"))
}

fn unknown(section: &str, name: &str, table: &Table) -> String {
    let names = || keys_of(section).map(ConfigKey::name);
    // A misspelled key of this section is more likely than a key in the wrong section.
    if let Some(near) = nearest(name, names()) {
        return format!("no such key; did you mean {near}?");
    }
    let elsewhere: Vec<String> =
        KEYS.iter().filter(|key| key.name() == name).map(|key| key.path.to_owned()).collect();
    if !elsewhere.is_empty() {
        return format!("no such key here; did you mean {}?", listed(&elsewhere));
    }
    // A key that the section already has cannot be the one that was meant.
    let free = names().filter(|known| !table.contains_key(*known)).map(ToOwned::to_owned);
    format!("no such key; the possible keys are {}", listed(&free.collect::<Vec<_>>()))
}

fn fits(kind: ValueKind, value: &Value) -> bool {
    let all = |value: &Value, fits: &dyn Fn(&Value) -> bool| {
        value.as_array().is_some_and(|values| values.iter().all(fits))
    };
    let is_one_of = |value: &Value, choices: &[&str]| {
        value.as_str().is_some_and(|text| choices.contains(&text))
    };
    match kind {
        ValueKind::Integer => is_integer(value),
        ValueKind::Number => matches!(value, Value::Integer(_) | Value::Float(_)),
        ValueKind::Boolean => value.is_bool(),
        ValueKind::Text => value.is_str(),
        ValueKind::Choice(choices) => is_one_of(value, choices),
        ValueKind::Integers => all(value, &is_integer),
        ValueKind::Texts => all(value, &Value::is_str),
        ValueKind::Choices(choices) => all(value, &|value| is_one_of(value, choices)),
        ValueKind::Rows => match value {
            Value::Integer(rows) => *rows >= 1,
            other => other.as_str() == Some("auto"),
        },
        ValueKind::IntegerPerName => value.as_table().is_some_and(|table| {
            table.values().all(|value| value.as_integer().is_some_and(|integer| integer >= 1))
        }),
        ValueKind::Section | ValueKind::Sections | ValueKind::SectionPerName => false,
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_integer()
}

/// Formats a value for messages, cut to 60 characters.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = match value {
        Value::Table(_) => return "a section".to_owned(),
        other => other.to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
