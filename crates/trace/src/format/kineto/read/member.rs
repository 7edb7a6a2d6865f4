//! Iterates over the members of a JSON object, for the parts of a file that are rarely read: the
//! header and counters.

use super::event::TextRange;
use super::lenient;
use super::scan::{self, Bracket, Scanned, Stop};

/// Returns the key of the next member, the text of its value, and the position after the value.
/// Returns `None` at the end of the object, or if there is no valid member. The text must have been
/// scanned before.
pub fn next(text: &[u8], at: usize) -> Option<(TextRange, &[u8], usize)> {
    let Ok(Next::Member(key, value)) = find(text, at) else { return None };
    let strict = scan::skip_value(text, value);
    // A repaired string is skipped in the same way as when the event was read.
    let follows = |end: usize| matches!(scan::after_blank(text, end), Ok((b',' | b'}' | b'"', _)));
    let end = match strict {
        Ok(end) if follows(end) => end,
        _ => lenient::skip_value(text, value, Bracket::Object).ok()?,
    };
    Some((key, &text[value..end], end))
}

/// The next token of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Member(TextRange, usize),
    /// Position after the closing bracket of the object.
    End(usize),
}

/// Finds the next member after a value or the opening bracket.
pub fn find(text: &[u8], at: usize) -> Scanned<Next> {
    let mut at = at;
    let start = loop {
        match *text.get(at).ok_or(Stop::Short)? {
            b',' => at += 1,
            byte if scan::is_blank(byte) => at += 1,
            b'"' => break at + 1,
            b'}' => return Ok(Next::End(at + 1)),
            _ => return Err(Stop::Broken(at)),
        }
    };
    let end = scan::string_end(text, start)?;
    let (colon, at) = scan::after_blank(text, end + 1)?;
    if colon != b':' {
        return Err(Stop::Broken(at));
    }
    let (_, value) = scan::after_blank(text, at + 1)?;
    Ok(Next::Member(TextRange { start, end, plain: false }, value))
}
