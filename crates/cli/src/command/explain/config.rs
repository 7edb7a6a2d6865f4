//! `rowmill explain config`: the keys of configurations, one, all, as a document or as a JSON
//! schema.

use std::fmt::Write as _;

use schema::reference::{self, ConfigKey, KEYS, Need, ValueKind};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::Document;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::render;

/// A key, for programs.
#[derive(Serialize)]
struct Explained {
    key: &'static str,
    value: String,
    required: bool,
    default: &'static str,
    meaning: &'static str,
    example: &'static str,
}

/// Explains one key, or all.
pub fn run(key: Option<&str>, document: Option<Document>, session: &Session) -> Result<(), Error> {
    match (document, key) {
        (Some(Document::Markdown), _) => session.console.print(markdown().trim_end()),
        (Some(Document::JsonSchema), _) => {
            let schema = serde_json::to_string_pretty(&schema())?;
            session.console.print(&schema)
        }
        (None, Some(key)) => one(key, session),
        (None, None) => {
            let all: Vec<Explained> = KEYS.iter().map(explained).collect();
            session.console.report(&all, |_| list())
        }
    }
}

fn explained(key: &ConfigKey) -> Explained {
    Explained {
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

/// `required`, or what holds without the key.
fn need(key: &ConfigKey) -> String {
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

fn list() -> String {
    let first = |text: &str| {
        let end = text.find(". ").map_or(text.len(), |end| end + 1);
        text[..end].to_owned()
    };
    let row = |key: &ConfigKey| vec![key.path.to_owned(), need(key), first(key.meaning)];
    let rows: Vec<_> = KEYS.iter().map(row).collect();
    render::grid(&["key", "default", "meaning"], &rows)
}

fn one(key: &str, session: &Session) -> Result<(), Error> {
    let found = reference::find(key);
    if found.is_empty() {
        let near = reference::nearest(key, KEYS.iter().map(ConfigKey::name)).map(reference::find);
        let near = near.unwrap_or_default().iter().map(|key| key.path.to_owned()).collect();
        return Err(UsageError::NoSuchKey { key: key.to_owned(), near }.into());
    }
    let all: Vec<Explained> = found.iter().map(|key| explained(key)).collect();
    session
        .console
        .report(&all, |_| found.iter().map(|key| text(key)).collect::<Vec<_>>().join("\n\n"))
}

/// One key in full; of a section, what may stand in it.
fn text(key: &ConfigKey) -> String {
    let mut rows = vec![("value", key.expected()), ("default", need(key))];
    rows.push(("example", key.example.to_owned()));
    let section = match key.kind {
        ValueKind::Sections => format!("{}[]", key.path),
        ValueKind::SectionPerName => format!("{}.*", key.path),
        _ => key.path.to_owned(),
    };
    let inside: Vec<&str> = reference::keys_of(&section).map(ConfigKey::name).collect();
    if !inside.is_empty() {
        rows.push(("keys", inside.join(", ")));
    }
    format!("{}\n  {}\n{}", key.path, key.meaning, render::facts(&rows))
}

fn markdown() -> String {
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
            // Writing to a `String` does not fail.
            let _ = write!(out, "\n## [{}]\n\n{}\n", key.path, key.meaning);
            let _ = write!(out, "\n| key | value | default | meaning |\n|---|---|---|---|\n");
            section = key.path;
            continue;
        }
        let name = key.path.strip_prefix(section).unwrap_or(key.path).trim_start_matches('.');
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} Example: `{}` |",
            cell(&key.expected()),
            cell(&need(key)),
            cell(key.meaning),
            cell(key.example)
        );
    }
    out
}

/// Text that a table of Markdown keeps in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A JSON schema of configurations.
fn schema() -> Value {
    let mut schema = object("");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("rowmill configuration");
    schema
}

/// The schema of the keys in `section`.
fn object(section: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for key in reference::keys_of(section) {
        properties.insert(key.name().to_owned(), property(key));
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

fn property(key: &ConfigKey) -> Value {
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
        ValueKind::Section => object(key.path),
        ValueKind::Sections => list(object(&format!("{}[]", key.path))),
        ValueKind::SectionPerName => json!({
            "type": "object", "additionalProperties": object(&format!("{}.*", key.path))
        }),
    };
    value["description"] = json!(key.meaning);
    if !key.default().is_empty() {
        value["description"] = json!(format!("{} Default: {}.", key.meaning, key.default()));
    }
    value
}
