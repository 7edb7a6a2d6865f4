//! Encodes arguments of slices as debug annotations of Perfetto.

use super::field::{annotation, event};
use super::packet::Interned;
use super::wire::{double, message, signed, text, unsigned};
use crate::export::argument::ArgumentValue;

/// Appends an argument to an event.
pub fn push(out: &mut Vec<u8>, interned: &mut Interned<'_>, key: &str, value: ArgumentValue<'_>) {
    let key = interned.annotation(key);
    message(out, event::ANNOTATION, |out| {
        unsigned(out, annotation::NAME_IID, key);
        push_value(out, value);
    });
}

fn push_value(out: &mut Vec<u8>, value: ArgumentValue<'_>) {
    match value {
        ArgumentValue::Unsigned(value) => unsigned(out, annotation::UNSIGNED, value),
        ArgumentValue::Signed(value) => signed(out, annotation::SIGNED, value),
        ArgumentValue::Float(value) => double(out, annotation::DOUBLE, value),
        ArgumentValue::Single(value) => double(out, annotation::DOUBLE, widened(value)),
        ArgumentValue::Text(value) => text(out, annotation::STRING, value),
        ArgumentValue::Three(values) => {
            for value in values {
                let item = |out: &mut Vec<u8>| {
                    unsigned(out, annotation::UNSIGNED, u64::from(value));
                };
                message(out, annotation::ITEMS, item);
            }
        }
        ArgumentValue::False => unsigned(out, annotation::BOOL, 0),
        ArgumentValue::Json(value) => push_json(out, value),
    }
}

/// Converts a number to the double with the same shortest decimals, so that 3.764706 is not written
/// as 3.7647058963775635.
fn widened(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn push_json(out: &mut Vec<u8>, value: &str) {
    match value.as_bytes().first() {
        Some(b'"') => {
            let parsed: Option<String> = serde_json::from_str(value).ok();
            text(out, annotation::STRING, parsed.as_deref().unwrap_or(value));
        }
        Some(b't') => unsigned(out, annotation::BOOL, 1),
        Some(b'f') => unsigned(out, annotation::BOOL, 0),
        Some(b'-' | b'0'..=b'9') => push_number(out, value),
        _ => text(out, annotation::JSON, value),
    }
}

fn push_number(out: &mut Vec<u8>, value: &str) {
    if let Ok(value) = value.parse() {
        signed(out, annotation::SIGNED, value);
    } else if let Ok(value) = value.parse() {
        unsigned(out, annotation::UNSIGNED, value);
    } else if let Ok(value) = value.parse() {
        double(out, annotation::DOUBLE, value);
    }
}
