//! Decodes the content of JSON strings, with escapes and the faults that occur in real traces.

/// A decoded text, and the number of faults in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    pub text: String,
    /// Number of control characters, unescaped quotes and invalid escapes, which are kept unchanged
    /// in the text.
    pub faults: u32,
    /// Whether invalid UTF-8 or half of a surrogate pair was replaced.
    pub invalid: bool,
}

/// Decodes the content of a JSON string without its quotes.
pub fn decode(content: &[u8]) -> Decoded {
    let mut out = Decoded { text: String::with_capacity(content.len()), ..Decoded::default() };
    let mut rest = content;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.push(&rest[..at]);
        let length = escape(&rest[at..], &mut out);
        rest = &rest[at + length..];
    }
    out.push(rest);
    out
}

impl Decoded {
    fn push(&mut self, bytes: &[u8]) {
        let odd = bytes.iter().filter(|byte| matches!(byte, ..0x20 | b'"')).count();
        self.faults += odd as u32;
        match str::from_utf8(bytes) {
            Ok(text) => self.text.push_str(text),
            Err(_) => {
                self.invalid = true;
                self.text.push_str(&String::from_utf8_lossy(bytes));
            }
        }
    }
}

/// Decodes the escape at the start of `rest`, and returns its length.
fn escape(rest: &[u8], out: &mut Decoded) -> usize {
    let plain = match rest.get(1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return unicode(rest, out),
        // The backslash is meant literally, for example in a Windows path.
        _ => {
            out.faults += 1;
            out.text.push('\\');
            return 1;
        }
    };
    out.text.push(plain);
    2
}

fn unicode(rest: &[u8], out: &mut Decoded) -> usize {
    let Some(first) = unit(rest) else {
        out.faults += 1;
        out.text.push('\\');
        return 1;
    };
    if let Some(second) = rest.get(6..).and_then(unit)
        && (0xd800..0xdc00).contains(&first)
        && (0xdc00..0xe000).contains(&second)
    {
        let joined = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        out.text.push(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER));
        return 12;
    }
    out.text.push(char::from_u32(first).unwrap_or_else(|| {
        out.invalid = true;
        char::REPLACEMENT_CHARACTER
    }));
    6
}

/// Parses the four hexadecimal digits of `\uXXXX`.
fn unit(rest: &[u8]) -> Option<u32> {
    let digits = rest.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::{Decoded, decode};

    fn decoded(text: &str, faults: u32, invalid: bool) -> Decoded {
        Decoded { text: text.to_owned(), faults, invalid }
    }

    #[test]
    fn escapes_become_what_they_stand_for() {
        assert_eq!(
            decode(br#"a\"b\\c\/\n\t\u00e9\ud83d\ude00"#),
            decoded("a\"b\\c/\n\té😀", 0, false)
        );
    }

    #[test]
    fn faults_are_kept_and_counted() {
        assert_eq!(decode(br"C:\Users\x"), decoded(r"C:\Users\x", 2, false));
        assert_eq!(decode(b"a\nb\"c"), decoded("a\nb\"c", 2, false));
        assert_eq!(decode(br"\u12"), decoded(r"\u12", 1, false));
        assert_eq!(decode(br"\"), decoded(r"\", 1, false));
        assert_eq!(decode(br"\ud83d."), decoded("\u{fffd}.", 0, true));
        assert_eq!(decode(b"a\xffb"), decoded("a\u{fffd}b", 0, true));
    }
}
