//! Members of a JSON object, one after the other, for what is read rarely: the header, counters.

use super::event::TextRange;
use super::lenient;
use super::scan::{self, Bracket, Scanned, Stop};

/// The key, the value's text, and the place behind it, of the next member; `None` at the object's
/// end and where no member is. The text has been scanned before.
pub fn next(text: &[u8], at: usize) -> Option<(TextRange, &[u8], usize)> {
    let Ok(Next::Member(key, value)) = find(text, at) else { return None };
    let strict = scan::skip_value(text, value);
    // What was repaired is skipped as it was when the event was read.
    let follows = |end: usize| matches!(scan::after_blank(text, end), Ok((b',' | b'}' | b'"', _)));
    let end = match strict {
        Ok(end) if follows(end) => end,
        _ => lenient::skip_value(text, value, Bracket::Object).ok()?,
    };
    Some((key, &text[value..end], end))
}

/// What is next in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A key, and where its value starts.
    Member(TextRange, usize),
    /// The place behind the closing bracket.
    End(usize),
}

/// What is next in an object, behind a value or the opening bracket.
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
