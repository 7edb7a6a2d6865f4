//! Detects the format of a text by its beginning. The format is a timeline of [`TIMELINES`], an
//! execution trace, or unknown.
//!
//! The reader of the format checks later whether the text is complete and valid.

use schema::file_format;

use crate::format::TIMELINES;
use crate::format::json_keys::each_key;
use crate::format::timeline::{ReadTimeline, Timeline};

/// Number of JSON keys that a message lists.
const NAMED: usize = 4;
/// Largest number of JSON keys that are examined to detect a format.
const SEEN: usize = 256;

/// The detected format of a text.
#[derive(Clone)]
pub enum TextKind {
    /// A timeline that contains one rank or several.
    Timeline(&'static Timeline),
    /// A PyTorch execution trace, which has nodes instead of events.
    ExecutionTrace,
    /// Any other content, with a description for messages.
    Other(String),
}

/// Detects the format of a text that begins with `head`.
pub fn sniff(head: &[u8]) -> TextKind {
    if let Some(name) =
        file_format::describe_format(&head[..head.len().min(file_format::HEAD_BYTES)])
    {
        return TextKind::Other(name.to_owned());
    }
    if let Some(format) = TIMELINES.iter().find(|format| (format.recognizes)(head)) {
        return TextKind::Timeline(format);
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match text.first() {
        Some(b'{') => object(text),
        Some(b'[') => array(text[1..].trim_ascii_start()),
        _ => TextKind::Other(beginning(text)),
    }
}

/// Describes the format of a text for messages.
pub fn describe(kind: &TextKind) -> String {
    match kind {
        TextKind::Timeline(format) => match format.read {
            // The reader of this format accepts damaged traces, so a trace that it rejects is
            // severely damaged.
            ReadTimeline::Blocks(_) => format!("a damaged {} trace", format.name),
            ReadTimeline::Whole(_) => format!("a {} trace", format.name),
        },
        TextKind::ExecutionTrace => "a PyTorch execution trace".to_owned(),
        TextKind::Other(words) => words.clone(),
    }
}

fn object(text: &[u8]) -> TextKind {
    let mut keys = Vec::new();
    each_key(text, |key| {
        keys.push(String::from_utf8_lossy(key).into_owned());
        keys.len() < SEEN
    });
    let has = |key: &str| keys.iter().any(|present| present == key);
    // The list of nodes may be beyond the examined beginning, but `pid` precedes it.
    if has("schema") && (has("nodes") || has("pid")) {
        return TextKind::ExecutionTrace;
    }
    if keys.is_empty() {
        return TextKind::Other("an empty JSON object".to_owned());
    }
    let more = if keys.len() > NAMED { ", …" } else { "" };
    keys.truncate(NAMED);
    let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
    TextKind::Other(format!("a JSON object with the keys {}{more}", quoted.join(", ")))
}

fn array(items: &[u8]) -> TextKind {
    let what = match items.first() {
        Some(b'{') => "a JSON array of something else than events",
        _ => "a JSON array without events",
    };
    TextKind::Other(what.to_owned())
}

fn beginning(text: &[u8]) -> String {
    let start: String =
        String::from_utf8_lossy(&text[..text.len().min(24)]).chars().take(20).collect();
    if text.iter().take(file_format::HEAD_BYTES).any(|byte| *byte < 9) {
        return "binary data".to_owned();
    }
    format!("text that begins with {start:?}")
}

#[cfg(test)]
mod tests {
    use super::{TextKind, describe, sniff};
    use crate::format::kineto;

    fn check(text: &str, expected: &str) {
        assert_eq!(describe(&sniff(text.as_bytes())), expected, "{text}");
    }

    #[test]
    fn formats_are_detected_by_top_level_keys() {
        for text in [
            r#"{"traceEvents": []}"#,
            "\u{feff} {\"a\": {\"b\": [1, \"}\"]}, \"schemaVersion\" : 1, ",
            r#"[{"name": "x", "ph": "X""#,
        ] {
            let is_kineto = matches!(sniff(text.as_bytes()),
                TextKind::Timeline(format) if std::ptr::eq(format, &kineto::TIMELINE));
            assert!(is_kineto, "{text}");
        }
        check(r#"{"schema": "1.0.1", "pid": 1, "nodes": ["#, "a PyTorch execution trace");
        check(
            r#"{"version":1,"columns":{"traceEvents":1},"a":1,"b":1,"c":"#,
            r#"a JSON object with the keys "version", "columns", "a", "b", …"#,
        );
        check("[1, 2]", "a JSON array without events");
        check(r#"[{"a": {"ph": 1}}]"#, "a JSON array of something else than events");
        check("step 1, loss 0.3", r#"text that begins with "step 1, loss 0.3""#);
        check("{\"a\\", "an empty JSON object");
        check("\u{1}\u{2}abc", "binary data");
    }
}
