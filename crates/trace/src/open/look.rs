//! The format of a text, by its beginning: Kineto's events, an execution trace, Perfetto's packets,
//! or something else.
//!
//! Reads keys only; the reader checks that the text is whole and valid.

use super::form;
use crate::format::perfetto::read::{self, Writer};

/// Keys that only Kineto writes at the top.
const KINETO: [&[u8]; 5] = [
    b"traceEvents",
    b"schemaVersion",
    b"deviceProperties",
    b"baseTimeNanoseconds",
    b"distributedInfo",
];
/// Keys of a text that are named in messages.
const NAMED: usize = 4;
/// Keys that are looked at before a text counts as something else.
const SEEN: usize = 256;

/// What a text looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// The events of a profiler.
    Kineto,
    /// Nodes: a PyTorch execution trace.
    ExecutionTrace,
    /// Perfetto's protobuf.
    Perfetto(Writer),
    /// What else, in words.
    Other(String),
}

/// What a text looks like that begins with `head`.
pub fn of(head: &[u8]) -> Look {
    if let Some(name) = form::name(&head[..head.len().min(form::HEAD)]) {
        return Look::Other(name.to_owned());
    }
    if let Some(writer) = read::announced(head) {
        return Look::Perfetto(writer);
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    match text.first() {
        Some(b'{') => object(text),
        Some(b'[') => array(text[1..].trim_ascii_start()),
        _ => Look::Other(beginning(text)),
    }
}

/// In words, for messages.
pub fn words(look: &Look) -> String {
    match look {
        Look::Kineto => "a damaged Kineto trace".to_owned(),
        Look::ExecutionTrace => "a PyTorch execution trace".to_owned(),
        Look::Perfetto(_) => "a Perfetto trace".to_owned(),
        Look::Other(words) => words.clone(),
    }
}

fn object(text: &[u8]) -> Look {
    let mut keys = Vec::new();
    let mut found = None;
    each_key(text, |key| {
        if KINETO.contains(&key) {
            found = Some(Look::Kineto);
        }
        keys.push(String::from_utf8_lossy(key).into_owned());
        found.is_none() && keys.len() < SEEN
    });
    let has = |key: &str| keys.iter().any(|known| known == key);
    match found {
        Some(look) => look,
        None if has("schema") && (has("nodes") || has("pid")) => Look::ExecutionTrace,
        None if keys.is_empty() => Look::Other("an empty JSON object".to_owned()),
        None => {
            let more = if keys.len() > NAMED { ", …" } else { "" };
            keys.truncate(NAMED);
            let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
            Look::Other(format!("a JSON object with the keys {}{more}", quoted.join(", ")))
        }
    }
}

fn array(items: &[u8]) -> Look {
    if items.first() != Some(&b'{') {
        return Look::Other("a JSON array without events".to_owned());
    }
    let mut is_event = false;
    each_key(items, |key| {
        is_event |= key == b"ph";
        !is_event
    });
    if is_event {
        Look::Kineto
    } else {
        Look::Other("a JSON array of something else than events".to_owned())
    }
}

/// Calls `each` with the keys of the object that `text` begins with, until it says `false`.
fn each_key(text: &[u8], mut each: impl FnMut(&[u8]) -> bool) {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let Some(end) = string_end(text, at + 1) else { return };
                let is_key = text[end + 1..].trim_ascii_start().first() == Some(&b':');
                if depth == 1 && is_key && !each(&text[at + 1..end]) {
                    return;
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Position of the quote that ends a text.
pub fn string_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn beginning(text: &[u8]) -> String {
    let start: String =
        String::from_utf8_lossy(&text[..text.len().min(24)]).chars().take(20).collect();
    if text.iter().take(form::HEAD).any(|byte| *byte < 9) {
        return "binary data".to_owned();
    }
    format!("text that begins with {start:?}")
}

#[cfg(test)]
mod tests {
    use super::{Look, of, words};

    fn check(text: &str, expected: &str) {
        assert_eq!(words(&of(text.as_bytes())), expected, "{text}");
    }

    #[test]
    fn keys_at_the_top_tell() {
        for text in [
            r#"{"traceEvents": []}"#,
            "\u{feff} {\"a\": {\"b\": [1, \"}\"]}, \"schemaVersion\" : 1, ",
            r#"[{"name": "x", "ph": "X""#,
        ] {
            assert_eq!(of(text.as_bytes()), Look::Kineto, "{text}");
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
