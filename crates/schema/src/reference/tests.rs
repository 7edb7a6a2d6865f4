mod mistyped;

use super::{KEYS, Need, ValueKind, keys_of};
use crate::JobConfig;

const JOB: &str = r#"
[model]
name = "a"
bottom = [4]
top = [1]
interaction = { kind = "dot" }
loss = "mse"
tables = [{ name = "a", rows = 10, dim = 4 }]
[optimizer]
sparse = { kind = "sgd", learning_rate = 0.1 }
dense = { kind = "sgd", learning_rate = 0.1 }
[schedule]
[training]
batch_size = 16
[data]
format = "csv"
label = { column = "y" }
dense = [{ column = "u" }]
categorical = [{ column = "a" }]
ids = { mode = "exact" }
[synthetic]
ids = { kind = "uniform" }
tables = { a = { kind = "uniform" } }
"#;

/// Parses `text` into the configuration types and returns the error.
fn typed(text: &str) -> String {
    toml::from_str::<JobConfig>(text).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

/// Returns the names in backticks after `expected` in a message.
fn names(message: &str) -> Vec<String> {
    let list = message.split_once("expected").map_or("", |(_, list)| list);
    let list = list.lines().next().unwrap_or_default();
    list.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Checks that the reference of each section has all keys of its type. An unknown key makes serde
/// list the keys that the type has.
#[test]
fn every_key_of_the_types_is_in_the_reference() {
    let sections = [
        ("model", "[model]", ""),
        ("model.interaction", "interaction = {", "dot"),
        ("model.interaction", "interaction = {", "dcn_v2"),
        ("model.tables[]", "tables = [{", ""),
        ("optimizer", "[optimizer]", ""),
        ("optimizer.sparse", "sparse = {", ""),
        ("optimizer.dense", "dense = {", ""),
        ("schedule", "[schedule]", ""),
        ("training", "[training]", ""),
        ("data", "[data]", ""),
        ("data.label", "label = {", ""),
        ("data.dense[]", "dense = [{", ""),
        ("data.categorical[]", "categorical = [{", ""),
        ("data.ids", "ids = {", "exact"),
        ("synthetic", "[synthetic]", ""),
        ("synthetic.ids", "[synthetic]\nids = {", "zipf"),
        ("synthetic.ids", "[synthetic]\nids = {", "reuse"),
        ("synthetic.tables.*", "tables = { a = {", "zipf"),
        ("synthetic.tables.*", "tables = { a = {", "reuse"),
    ];
    for (section, place, tag) in sections {
        let mark = if place.ends_with(']') { "\nzzz = 1" } else { " zzz = 1," };
        let mut text = JOB.replacen(place, &format!("{place}{mark}"), 1);
        if !tag.is_empty() {
            let tags = ["\"dot\"", "\"exact\"", "\"uniform\""];
            let at = text.find(mark).unwrap();
            let old = tags.iter().filter_map(|old| Some((text[at..].find(old)?, old))).min();
            text.replace_range(
                at + old.unwrap().0..at + old.unwrap().0 + old.unwrap().1.len(),
                &format!("{tag:?}"),
            );
        }
        let message = typed(&text);
        assert!(message.contains("unknown field"), "{section}: {message}");
        let mut got = names(&message);
        got.retain(|name| !["zzz", "threshold"].contains(&name.as_str()));
        got.sort();
        let mut expected: Vec<&str> = keys_of(section)
            .filter(|key| match key.need {
                Need::With { tag: of, .. } => of == tag,
                // Serde consumes the tag of an enum before it checks the other keys.
                _ => tag.is_empty(),
            })
            .map(super::ConfigKey::name)
            .collect();
        expected.sort_unstable();
        assert_eq!(got, expected, "{section} {tag}: {message}");
    }
}

/// Checks that the reference of each key has all values of its type. An unknown value makes serde
/// list the values that the type has.
#[test]
fn every_choice_of_the_types_is_in_the_reference() {
    for key in KEYS {
        let (ValueKind::Choice(choices) | ValueKind::Choices(choices)) = key.kind else { continue };
        let mut table: toml::Table = toml::from_str(JOB).unwrap();
        let path = key.path.replace("[]", ".0").replace('*', "a");
        let is_list = matches!(key.kind, ValueKind::Choices(_));
        let value = if is_list { "[\"zzz\"]" } else { "zzz" };
        super::set(&mut table, &path, value).unwrap();
        let message = typed(&toml::to_string(&table).unwrap());
        assert!(message.contains("unknown variant"), "{path}: {message}");
        let mut got = names(&message);
        got.sort();
        let mut expected = choices.to_vec();
        expected.sort_unstable();
        assert_eq!(got, expected, "{path}: {message}");
    }
}

#[test]
fn every_key_has_a_meaning_and_an_example_in_its_section() {
    for key in KEYS {
        assert!(!key.meaning.is_empty() && !key.example.is_empty(), "{}", key.path);
        let parent = key.section().trim_end_matches(".*").trim_end_matches("[]");
        let known = KEYS.iter().any(|other| other.path == parent);
        assert!(parent.is_empty() || known, "{}: no section {parent}", key.path);
    }
    let mut paths: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), KEYS.len(), "a key occurs twice");
}
