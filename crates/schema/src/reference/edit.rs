//! Applies overrides: finds the key that a short name refers to, and sets its value. Entries of
//! lists are addressed by name.

use toml::{Table, Value};

use super::{ConfigKey, KEYS, ValueKind, find, listed, nearest};
use crate::pattern;

/// Sets `key` of `table` to `value`. Returns the full path of the key.
///
/// # Errors
/// Returns a description of the problem with the key.
pub(crate) fn set(table: &mut Table, key: &str, value: &str) -> Result<String, String> {
    let mut path: Vec<&str> = key.split('.').collect();
    if path.iter().any(|part| part.is_empty()) {
        return Err("expected a key such as training.batch_size".to_owned());
    }
    let whole;
    // A key that does not begin with a section is a short name.
    if !KEYS.iter().any(|known| known.path == path[0]) {
        whole = meant(key)?;
        path = whole.path.split('.').collect();
    }
    let value = value_of(kind_of(&path), value);
    let (mut place, mut at) = (table, 0);
    while at + 1 < path.len() {
        let here = &path[..=at];
        // The text may omit a whole section, so missing sections are created on the way.
        let entry = place.entry(path[at]).or_insert_with(|| empty(here));
        at += 1;
        place = match entry {
            Value::Table(table) => table,
            Value::Array(entries) => {
                let list = here.join(".");
                let entry = entry_named(entries, path[at], &list)?;
                at += 1;
                if at == path.len() {
                    let key = first_key(&list);
                    return Err(format!("expected a key of the entry too, such as {key}"));
                }
                entry
            }
            _ => return Err(format!("{} is not a section", here.join("."))),
        };
    }
    place.insert(path[at].to_owned(), value);
    Ok(path.join("."))
}

/// Finds the only key that a short name can refer to.
fn meant(key: &str) -> Result<&'static ConfigKey, String> {
    let is_single = |known: &&&ConfigKey| !known.path.contains(['[', '*']);
    let found = find(key);
    let single: Vec<&ConfigKey> = found.iter().filter(is_single).copied().collect();
    match (&single[..], &found[..]) {
        ([one], _) => Ok(one),
        ([], []) => {
            let known = KEYS.iter().map(ConfigKey::name);
            let near = nearest(key, known).map(|near| paths(&find(near)));
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            Err(format!("no such key{near}; rowmill explain config lists them"))
        }
        ([], entries) => {
            let examples = entries.iter().map(|key| {
                let (list, end) = key.path.split_once("[]").unwrap_or((key.path, ""));
                format!("{list}.NAME{end}")
            });
            Err(format!("expected the entry's name too: {}", listed(&examples.collect::<Vec<_>>())))
        }
        (several, _) => Err(format!("means {}; give one of them", paths(several))),
    }
}

fn paths(keys: &[&ConfigKey]) -> String {
    listed(&keys.iter().map(|key| key.path.to_owned()).collect::<Vec<_>>())
}

/// Returns the name of a key that entries of `list` have, as an example for messages.
fn first_key(list: &str) -> &'static str {
    let entry = format!("{list}[]");
    let key = super::keys_of(&entry).nth(1);
    key.map_or("name", ConfigKey::name)
}

fn empty(path: &[&str]) -> Value {
    let joined = path.join(".");
    let is_list = KEYS.iter().any(|key| key.path == joined && key.kind == ValueKind::Sections);
    if is_list { Value::Array(Vec::new()) } else { Value::Table(Table::new()) }
}

/// Returns the entry of a list that has this `name` or index. An entry whose name is a range, such
/// as `t{0..7}`, is expanded first.
fn entry_named<'a>(
    entries: &'a mut Vec<Value>,
    name: &str,
    list: &str,
) -> Result<&'a mut Table, String> {
    let names = |entry: &Value| -> Vec<String> {
        let text = ["name", "column"].iter().find_map(|key| entry.get(*key)?.as_str());
        text.map_or_else(Vec::new, pattern::expand)
    };
    let by_name = |entries: &[Value]| {
        entries.iter().position(|entry| names(entry).iter().any(|known| known == name))
    };
    let at = by_name(entries).or_else(|| name.parse().ok().filter(|&at| at < entries.len()));
    let Some(mut at) = at else {
        let known: Vec<String> = entries.iter().flat_map(names).collect();
        let near = nearest(name, known.iter().map(String::as_str));
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        return Err(format!("{list} has no entry {name:?} among its {}{near}", known.len()));
    };
    let many = names(&entries[at]);
    // An override changes one entry only, so a range is first expanded to single entries.
    if many.len() > 1 {
        let single = many.iter().map(|name| {
            let mut entry = entries[at].clone();
            for key in ["name", "column"] {
                if let Some(value) = entry.get_mut(key) {
                    *value = Value::String(name.clone());
                }
            }
            entry
        });
        let single: Vec<Value> = single.collect();
        entries.splice(at..=at, single);
        at = by_name(entries).unwrap_or(at);
    }
    entries[at].as_table_mut().ok_or_else(|| format!("{list}[{at}] is not an entry {{ … }}"))
}

/// Returns the type of the value at `path`, if it is a known key.
fn kind_of(path: &[&str]) -> Option<ValueKind> {
    let fits = |key: &&ConfigKey| {
        let known: Vec<&str> = key
            .path
            .split('.')
            .flat_map(|part| match part.strip_suffix("[]") {
                Some(list) => vec![list, "*"],
                None => vec![part],
            })
            .collect();
        known.len() == path.len()
            && known.iter().zip(path).all(|(known, part)| known == part || *known == "*")
    };
    KEYS.iter().find(fits).map(|key| key.kind)
}

/// Parses a value as TOML. A value that is not TOML becomes a text, and so do all values of keys
/// that expect text.
fn value_of(kind: Option<ValueKind>, text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}"));
    let value = parsed.ok().and_then(|mut table| table.remove("value"));
    match (kind, value) {
        (Some(ValueKind::Text | ValueKind::Choice(_)), Some(value)) if !value.is_str() => {
            Value::String(text.to_owned())
        }
        (Some(ValueKind::Texts), Some(value)) if value.is_str() => Value::Array(vec![value]),
        (Some(ValueKind::Texts), None) => Value::Array(vec![Value::String(text.to_owned())]),
        (_, Some(value)) => value,
        (_, None) => Value::String(text.to_owned()),
    }
}
