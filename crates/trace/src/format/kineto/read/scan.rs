//! Finds the ends of values in valid JSON text. A string ends at its first unescaped quote.
//!
//! Each result depends only on the text from the given position on. More text can change only the
//! result [`Stop::Short`]. Therefore the reader's result does not depend on blocks and threads.

use super::lane;

/// The reason why a scan has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The text ends before the value does.
    Short,
    /// The text is not valid JSON at this position.
    Broken(usize),
}

/// The result of a scan, or the reason why there is none.
pub type Scanned<T> = Result<T, Stop>;

/// Largest nesting depth of a value. Deeper values are rejected as invalid. Kineto nests values at
/// most four deep.
pub const DEPTH_LIMIT: u32 = 64;

/// Whether a byte is white space in JSON.
#[inline(always)]
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Returns the first position from `at` on that is not blank.
#[inline]
pub fn skip_blank(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|byte| is_blank(*byte)) {
        at += 1;
    }
    at
}

/// Returns the first byte from `at` on that is not blank, and its position.
pub fn after_blank(text: &[u8], at: usize) -> Scanned<(u8, usize)> {
    let at = skip_blank(text, at);
    Ok((*text.get(at).ok_or(Stop::Short)?, at))
}

/// Finds the closing quote of a string whose content starts at `at`.
#[inline]
pub fn string_end(text: &[u8], mut at: usize) -> Scanned<usize> {
    loop {
        at = first_quote(text, at).ok_or(Stop::Short)?;
        if text[at] == b'"' {
            return Ok(at);
        }
        at += 2;
    }
}

#[inline(always)]
fn first_quote(text: &[u8], mut at: usize) -> Option<usize> {
    while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let quote_bits = lane::quotes(bytes);
        if quote_bits != 0 {
            return Some(at + quote_bits.trailing_zeros() as usize);
        }
        at += lane::WIDTH;
    }
    let rest = text.get(at..)?;
    rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| at + found)
}

/// Finds the closing quote of a string of printable ASCII without escapes. Returns `None` if the
/// string has other characters or ends near the end of the text.
#[inline(always)]
pub fn plain_end(text: &[u8], mut at: usize) -> Option<usize> {
    while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let mark_bits = lane::marks(bytes);
        if mark_bits != 0 {
            at += mark_bits.trailing_zeros() as usize;
            return (text[at] == b'"').then_some(at);
        }
        at += lane::WIDTH;
    }
    None
}

/// Whether the content of a string is printable ASCII without escapes.
pub fn is_plain(content: &[u8]) -> bool {
    content.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\')
}

/// Returns the position after the value that starts at `at`.
#[inline]
pub fn skip_value(text: &[u8], at: usize) -> Scanned<usize> {
    match text.get(at).ok_or(Stop::Short)? {
        b'"' => Ok(string_end(text, at + 1)? + 1),
        b'[' => skip_array(text, at).map_or_else(|| skip_nested(text, at), Ok),
        b'{' => skip_nested(text, at),
        _ => scalar_end(text, at),
    }
}

/// Returns the position after the number or word that starts at `at`.
pub fn scalar_end(text: &[u8], start: usize) -> Scanned<usize> {
    let mut at = start;
    while text.get(at).is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+')) {
        at += 1;
    }
    let word = at;
    while text.get(at).is_some_and(u8::is_ascii_alphabetic) {
        at += 1;
    }
    let next = text.get(at).ok_or(Stop::Short)?;
    let exponent = matches!(text[word..at], [b'e' | b'E']) && word > start;
    if exponent && matches!(next, b'0'..=b'9' | b'+' | b'-') {
        let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-');
        while text.get(at).is_some_and(digits) {
            at += 1;
        }
        return if at < text.len() { Ok(at) } else { Err(Stop::Short) };
    }
    if at == start || at > word && !is_word(&text[word..at]) {
        return Err(Stop::Broken(start));
    }
    Ok(at)
}

/// Whether a bare word is accepted as a value. JSON's words and non-finite numbers are accepted.
fn is_word(word: &[u8]) -> bool {
    matches!(
        word,
        b"true" | b"false" | b"null" | b"NaN" | b"nan" | b"Infinity" | b"inf" | b"Inf" | b"None"
    )
}

/// Returns the position after an array that holds only arrays, strings and numbers. Returns `None`
/// if the array holds anything else, or reaches near the end of the text. The caller uses
/// [`skip_nested`] if the result is `None`.
#[inline]
fn skip_array(text: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0u32;
    let mut inside = 0u64;
    let mut at = start;
    loop {
        let marks = lane::places(text.get(at..)?.first_chunk()?);
        if marks.backslash != 0 {
            return None;
        }
        // An odd number of quotes before a byte means that the byte is inside a string.
        let quoted = lane::parity(marks.quote) ^ inside;
        let structure = marks.open | marks.close | marks.quote | marks.plain;
        let odd = !(structure | quoted);
        let mut brackets = (marks.open | marks.close) & !quoted;
        while brackets != 0 {
            let bit = brackets & brackets.wrapping_neg();
            brackets ^= bit;
            if marks.open & bit != 0 {
                depth += 1;
                if depth > DEPTH_LIMIT {
                    return None;
                }
            } else {
                depth -= 1;
                if depth == 0 {
                    return (odd & (bit - 1) == 0).then(|| at + bit.trailing_zeros() as usize + 1);
                }
            }
        }
        if odd != 0 {
            return None;
        }
        // The last byte tells whether the next 64 bytes start inside a string.
        inside = ((quoted as i64) >> 63) as u64;
        at += 64;
    }
}

/// Returns the position after any array or object. Brackets must match in kind.
fn skip_nested(text: &[u8], start: usize) -> Scanned<usize> {
    skip_nested_by(text, start, |text, at, _| string_end(text, at), word_end)
}

/// Skips an array or object as [`skip_value`] does, but with other rules for the ends of strings
/// and bare words.
pub fn skip_nested_by(
    text: &[u8],
    start: usize,
    string_end: impl Fn(&[u8], usize, Bracket) -> Scanned<usize>,
    word_end: impl Fn(&[u8], usize) -> Scanned<usize>,
) -> Scanned<usize> {
    let mut open = BracketStack::default();
    let mut at = start;
    loop {
        let byte = *text.get(at).ok_or(Stop::Short)?;
        at = match byte {
            b'"' => string_end(text, at + 1, open.innermost())? + 1,
            b'[' if open.enter(Bracket::Array) => at + 1,
            b'{' if open.enter(Bracket::Object) => at + 1,
            b']' if open.leave(Bracket::Array) => at + 1,
            b'}' if open.leave(Bracket::Object) => at + 1,
            ..=b' ' | b'+'..=b':' => at + 1,
            b'a'..=b'z' | b'A'..=b'Z' => word_end(text, at)?,
            _ => return Err(Stop::Broken(at)),
        };
        if open.depth == 0 {
            return Ok(at);
        }
    }
}

/// The two kinds of brackets in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bracket {
    Array,
    Object,
}

/// A stack of open brackets as bits, with the innermost bracket in the lowest bit. A bit is 1 for
/// an object and 0 for an array.
#[derive(Default)]
struct BracketStack {
    objects: u64,
    depth: u32,
}

impl BracketStack {
    fn innermost(&self) -> Bracket {
        if self.objects & 1 == 1 { Bracket::Object } else { Bracket::Array }
    }

    fn enter(&mut self, bracket: Bracket) -> bool {
        self.objects = self.objects << 1 | u64::from(bracket == Bracket::Object);
        self.depth += 1;
        self.depth <= DEPTH_LIMIT
    }

    fn leave(&mut self, bracket: Bracket) -> bool {
        let matching = self.innermost() == bracket;
        self.objects >>= 1;
        self.depth -= 1;
        matching
    }
}

fn word_end(text: &[u8], start: usize) -> Scanned<usize> {
    let rest = &text[start..];
    let length = rest.iter().position(|byte| !byte.is_ascii_alphabetic()).ok_or(Stop::Short)?;
    match &rest[..length] {
        b"e" | b"E" => Ok(start + length),
        word if is_word(word) => Ok(start + length),
        _ => Err(Stop::Broken(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Stop, skip_array, skip_nested, skip_value};

    #[test]
    fn array_ends_at_its_closing_bracket() {
        let text = r#"[[1, 2], ["a]", "b[", ""], [-1.5e3, null], {"x": [true, NaN]}], "next": 1 "#;
        assert_eq!(skip_value(text.as_bytes(), 0), Ok(text.find(", \"next\"").unwrap()));
        let plain = format!(r#"[[1, 2], ["a]", "b["], [-1.5]]{:200}"#, "");
        let bytes = plain.as_bytes();
        assert_eq!(skip_array(bytes, 0), Some(30));
        assert_eq!(skip_nested(bytes, 0), Ok(30));
    }

    #[test]
    fn nesting_is_bounded_and_brackets_match() {
        let deep = "[".repeat(70) + &"]".repeat(70) + &" ".repeat(80);
        assert_eq!(skip_value(deep.as_bytes(), 0), Err(Stop::Broken(64)));
        assert_eq!(skip_value(b"[1, 2} ", 0), Err(Stop::Broken(5)));
        assert_eq!(skip_value(b"[1, 2", 0), Err(Stop::Short));
        assert_eq!(skip_value(b"[1, word]", 0), Err(Stop::Broken(4)));
    }

    #[test]
    fn non_finite_numbers_are_values() {
        for text in ["NaN,", "-Infinity}", "inf ", "1e5,", "-1.5E+10]", "null,"] {
            assert_eq!(skip_value(text.as_bytes(), 0), Ok(text.len() - 1), "{text}");
        }
        assert_eq!(skip_value(b"nope,", 0), Err(Stop::Broken(0)));
        assert_eq!(skip_value(b",", 0), Err(Stop::Broken(0)));
        assert_eq!(skip_value(b"12", 0), Err(Stop::Short));
    }
}
