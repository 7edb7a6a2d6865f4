//! The command `rowmill explain config`, which prints one configuration key, a list of all keys,
//! the whole reference as Markdown, or a JSON schema.

use std::fmt::Write as _;

use schema::reference::{self, ConfigKey, KEYS, Need, ValueKind};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::Document;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::render;

/// A configuration key, in the form in which it is printed as JSON.
#[derive(Serialize)]
struct ExplainedKey {
    key: &'static str,
    value: String,
    required: bool,
    default: &'static str,
    meaning: &'static str,
    example: &'static str,
}

/// Prints one configuration key, a list of all keys, or the chosen document.
pub fn run(key: Option<&str>, document: Option<Document>, session: &Session) -> Result<(), Error> {
    match (document, key) {
        (Some(Document::Markdown), _) => session.console.print(markdown_reference().trim_end()),
        (Some(Document::JsonSchema), _) => {
            let schema = serde_json::to_string_pretty(&config_schema())?;
            session.console.print(&schema)
        }
        (None, Some(key)) => explain_key(key, session),
        (None, None) => {
            let all: Vec<ExplainedKey> = KEYS.iter().map(key_fields).collect();
            session.console.report(&all, |_| key_list(KEYS))
        }
    }
}

fn key_fields(key: &ConfigKey) -> ExplainedKey {
    ExplainedKey {
        key: key.path,
        value: key.expected(),
        required: is_required(key),
        default: key.default(),
        meaning: key.meaning,
        example: key.example,
    }
}

fn is_required(key: &ConfigKey) -> bool {
    matches!(key.need, Need::Always | Need::With { is_required: true, .. })
}

/// Returns `required`, or else the default value of the configuration key.
fn describe_need(key: &ConfigKey) -> String {
    let beside = match key.need {
        Need::With { tag, .. } => format!(" beside {tag:?}"),
        _ => String::new(),
    };
    match (is_required(key), key.default()) {
        (true, _) => format!("required{beside}"),
        (false, "") => format!("optional{beside}"),
        (false, default) => format!("{default}{beside}"),
    }
}

fn key_list<'a>(keys: impl IntoIterator<Item = &'a ConfigKey>) -> String {
    let first = |text: &str| {
        let end = text.find(". ").map_or(text.len(), |end| end + 1);
        text[..end].to_owned()
    };
    let row = |key: &ConfigKey| vec![key.path.to_owned(), describe_need(key), first(key.meaning)];
    let rows: Vec<_> = keys.into_iter().map(row).collect();
    render::grid(&["key", "default", "meaning"], &rows)
}

fn explain_key(key: &str, session: &Session) -> Result<(), Error> {
    let found = reference::find(key);
    if found.is_empty() {
        let near = reference::nearest(key, KEYS.iter().map(ConfigKey::name)).map(reference::find);
        let near = near.unwrap_or_default().iter().map(|key| key.path.to_owned()).collect();
        return Err(UsageError::NoSuchKey { key: key.to_owned(), near }.into());
    }
    let all: Vec<ExplainedKey> = found.iter().map(|key| key_fields(key)).collect();
    session
        .console
        .report(&all, |_| found.iter().map(|key| key_text(key)).collect::<Vec<_>>().join("\n\n"))
}

/// The full description of one configuration key. For a section, it ends with the keys within.
fn key_text(key: &ConfigKey) -> String {
    let mut rows = vec![("value", key.expected()), ("default", describe_need(key))];
    rows.push(("example", key.example.to_owned()));
    let about = format!("{}\n  {}\n{}", key.path, key.meaning, render::facts(&rows));
    let is_inside = |other: &&ConfigKey| {
        other.path.strip_prefix(key.path).is_some_and(|end| end.starts_with(['.', '[']))
    };
    let mut inside = KEYS.iter().filter(is_inside).peekable();
    if inside.peek().is_none() { about } else { format!("{about}\n\n{}", key_list(inside)) }
}

fn markdown_reference() -> String {
    let mut out = "# Configuration\n\n\
        Every key of a job's TOML, made by `rowmill explain config --as markdown`. One key: \
        `rowmill explain config KEY`. A configuration with everything filled in: `rowmill train \
        --print-config NAME|FILE`. For editors: `rowmill explain config --as json-schema`.\n\n\
        `--set KEY=VALUE` changes a key for one run. KEY is a path of this page or the end of one \
        that means a single key; an entry of a list is reached by its name: \
        `--set model.tables.C3.rows=1000`.\n"
        .to_owned();
    let mut section = "";
    for key in KEYS {
        let is_heading = matches!(
            key.kind,
            ValueKind::Section | ValueKind::Sections | ValueKind::SectionPerName
        );
        if is_heading && key.section().is_empty() {
            // Writing to a `String` never fails, so the result is ignored.
            let _ = write!(out, "\n## [{}]\n\n{}\n", key.path, key.meaning);
            let _ = write!(out, "\n| key | value | default | meaning |\n|---|---|---|---|\n");
            section = key.path;
            continue;
        }
        let name = key.path.strip_prefix(section).unwrap_or(key.path).trim_start_matches('.');
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} Example: `{}` |",
            escape_cell(&key.expected()),
            escape_cell(&describe_need(key)),
            escape_cell(key.meaning),
            escape_cell(key.example)
        );
    }
    out
}

/// Escapes a text for a cell of a Markdown table.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The JSON schema of a whole configuration file.
fn config_schema() -> Value {
    let mut schema = section_schema("");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("rowmill configuration");
    schema
}

/// The JSON schema of an object with the configuration keys of `section`.
fn section_schema(section: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in reference::keys_of(section) {
        properties.insert(key.name().to_owned(), value_schema(key));
        if key.need == Need::Always {
            required.push(key.name());
        }
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// The JSON schema for the value of one configuration key.
fn value_schema(key: &ConfigKey) -> Value {
    let texts = |choices: &[&str]| json!({ "type": "string", "enum": choices });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let mut value = match key.kind {
        ValueKind::Integer => json!({ "type": "integer" }),
        ValueKind::Number => json!({ "type": "number" }),
        ValueKind::Boolean => json!({ "type": "boolean" }),
        ValueKind::Text => json!({ "type": "string" }),
        ValueKind::Choice(choices) => texts(choices),
        ValueKind::Integers => list(json!({ "type": "integer" })),
        ValueKind::Texts => list(json!({ "type": "string" })),
        ValueKind::Choices(choices) => list(texts(choices)),
        ValueKind::Rows => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 }, { "const": "auto" }
        ] }),
        ValueKind::IntegerPerName => json!({
            "type": "object", "additionalProperties": { "type": "integer", "minimum": 1 }
        }),
        ValueKind::Section => section_schema(key.path),
        ValueKind::Sections => list(section_schema(&format!("{}[]", key.path))),
        ValueKind::SectionPerName => json!({
            "type": "object", "additionalProperties": section_schema(&format!("{}.*", key.path))
        }),
    };
    value["description"] = json!(key.meaning);
    if !key.default().is_empty() {
        value["description"] = json!(format!("{} Default: {}.", key.meaning, key.default()));
    }
    value
}
