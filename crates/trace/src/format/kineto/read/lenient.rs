//! Finds the end of values in events that are not valid JSON, because strings have unescaped quotes
//! or lone backslashes, or values are bare words such as `N/A`.
//!
//! The lenient scanner is used only for events that the strict scanner rejected. A quote ends a
//! string if the text after it can only follow a string, as the next key or the end of the object
//! does. A known key in the middle of a string means that the string's closing quote is missing.

use super::key;
use super::scan::{self, Bracket, Scanned, Stop};

/// Largest number of bytes in which the end of a string is searched for. If the end is farther
/// away, the event is skipped.
const LONGEST: usize = 1 << 14;
const LONGEST_KEY: usize = 128;
/// Largest length of a bare word that is accepted as a value.
const LONGEST_WORD: usize = 32;

/// Finds the closing quote of a string whose content starts at `start`, inside an object or an
/// array.
pub fn string_end(text: &[u8], start: usize, within: Bracket) -> Scanned<usize> {
    let mut at = start;
    loop {
        let distance = text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest));
        at += distance.ok_or(Stop::Short)?;
        if at - start > LONGEST {
            return Err(Stop::Broken(start));
        }
        let escaped = text[at] == b'\\';
        if escaped {
            at += 1;
            if *text.get(at).ok_or(Stop::Short)? != b'"' {
                at += 1;
                continue;
            }
        }
        // An escaped quote ends a string only if its backslash is a lone one, as at the end of a
        // Windows path. A key after the quote proves that the string has ended.
        let ends = match within {
            Bracket::Object => ends_member(text, at)?,
            Bracket::Array => !escaped && matches!(scan::after_blank(text, at + 1)?.0, b',' | b']'),
        };
        if ends {
            return Ok(at);
        }
        if known_key_at(text, at)? {
            return Err(Stop::Broken(start));
        }
        at += 1;
    }
}

/// Returns the position after the value that starts at `at`.
pub fn skip_value(text: &[u8], at: usize, within: Bracket) -> Scanned<usize> {
    match text.get(at).ok_or(Stop::Short)? {
        b'"' => Ok(string_end(text, at + 1, within)? + 1),
        b'[' | b'{' => scan::skip_nested_by(text, at, string_end, bare_end),
        _ => match scan::scalar_end(text, at) {
            Err(Stop::Broken(_)) => bare_end(text, at),
            end => end,
        },
    }
}

/// Finds the end of an unquoted value that is neither a number nor a word of JSON, such as `N/A`,
/// `-nan(ind)`, `1.#QNAN`, or an empty value. A separator must follow an unquoted value. The value
/// counts as unknown, and the rest of the event is kept.
fn bare_end(text: &[u8], start: usize) -> Scanned<usize> {
    let is_bare = |byte: &&u8| byte.is_ascii_alphanumeric() || b"/.#+-_%()?<>".contains(byte);
    let rest = &text[start..];
    let length = rest.iter().take_while(is_bare).count();
    match scan::after_blank(text, start + length)?.0 {
        b',' | b'}' | b']' if length <= LONGEST_WORD => Ok(start + length),
        _ => Err(Stop::Broken(start)),
    }
}

/// Whether the quote at `quote` can end the value of a key.
fn ends_member(text: &[u8], quote: usize) -> Scanned<bool> {
    let (next, at) = scan::after_blank(text, quote + 1)?;
    match next {
        b'}' => Ok(matches!(scan::after_blank(text, at + 1)?.0, b',' | b'}' | b']' | b'{')),
        b',' => match scan::after_blank(text, at + 1)? {
            (b'"', at) => Ok(key_at(text, at)?.is_some()),
            (next, _) => Ok(next == b'}'),
        },
        b'"' => Ok(key_at(text, at)?.is_some()),
        _ => Ok(false),
    }
}

/// Returns the key whose opening quote is at `quote`, if a colon follows the key.
pub fn key_at(text: &[u8], quote: usize) -> Scanned<Option<&[u8]>> {
    let rest = text.get(quote + 1..).ok_or(Stop::Short)?;
    let near = &rest[..rest.len().min(LONGEST_KEY)];
    let Some(length) = memchr::memchr3(b'"', b'\n', b'\\', near) else {
        return if near.len() < LONGEST_KEY { Err(Stop::Short) } else { Ok(None) };
    };
    if near[length] != b'"' {
        return Ok(None);
    }
    let (colon, _) = scan::after_blank(rest, length + 1)?;
    Ok((colon == b':').then_some(&near[..length]))
}

fn known_key_at(text: &[u8], quote: usize) -> Scanned<bool> {
    Ok(key_at(text, quote)?.is_some_and(key::is_event_key))
}

#[cfg(test)]
mod tests {
    use super::{Bracket, Stop, string_end};

    fn content(text: &str) -> Result<&str, Stop> {
        string_end(text.as_bytes(), 1, Bracket::Object).map(|end| &text[1..end])
    }

    #[test]
    fn quotes_inside_a_text_do_not_end_it() {
        assert_eq!(content(r#""a "b" c", "pid": 1"#), Ok(r#"a "b" c"#));
        assert_eq!(content(r#""a", "b", c", "pid": 1"#), Ok(r#"a", "b", c"#));
        assert_eq!(content(r#""f({"x"})"}, {"#), Ok(r#"f({"x"})"#));
        assert_eq!(content(r#""C:\", "pid": 1"#), Ok(r"C:\"));
        assert_eq!(content(r#""no comma" "pid": 1"#), Ok("no comma"));
    }

    #[test]
    fn known_key_inside_a_string_means_its_closing_quote_is_missing() {
        assert_eq!(content(r#""abc, "pid": 1, "tid": 2, "x": "y"}, "#), Err(Stop::Broken(1)));
    }
}
