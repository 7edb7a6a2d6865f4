//! Splits Rust text into code and comments by blanking out the rest, so that rules can search lines
//! without being misled by strings. The text is tokenized but not parsed.

/// The code and the comments of a file as two texts. Each text has the length and the lines of the
/// input, and all other characters in it are blank.
pub struct Masked {
    /// The code of the file, in which only the quotes of strings remain.
    pub code: String,
    pub comments: String,
}

/// The three kinds of text that are distinguished.
enum SourceToken {
    Code,
    Comment,
    Literal,
}

/// Splits one file into its code and its comments.
pub fn mask(text: &str) -> Masked {
    let bytes = text.as_bytes();
    let blank = |&byte: &u8| if byte == b'\n' { b'\n' } else { b' ' };
    let mut code: Vec<u8> = bytes.iter().map(blank).collect();
    let mut comments = code.clone();
    let mut at = 0;
    while at < bytes.len() {
        let (token, end) = next(bytes, at);
        match token {
            SourceToken::Code => code[at..end].copy_from_slice(&bytes[at..end]),
            SourceToken::Comment => comments[at..end].copy_from_slice(&bytes[at..end]),
            SourceToken::Literal => (code[at], code[end - 1]) = (b'"', b'"'),
        }
        at = end;
    }
    // Blanking a string may split a character of several bytes, so the conversion must accept
    // invalid UTF-8.
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Masked { code: text(code), comments: text(comments) }
}

fn next(bytes: &[u8], at: usize) -> (SourceToken, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        return (SourceToken::Comment, at + length);
    }
    if rest.starts_with(b"/*") {
        return (SourceToken::Comment, at + block_comment(rest));
    }
    if rest[0] == b'"' {
        return (SourceToken::Literal, at + string(rest));
    }
    // The `r` in `for` or `var` does not open a raw string.
    let after_word = at > 0 && is_word(bytes[at - 1]);
    if !after_word && let Some(length) = raw_string(rest) {
        return (SourceToken::Literal, at + length);
    }
    if rest[0] == b'\''
        && let Some(length) = character(rest)
    {
        return (SourceToken::Literal, at + length);
    }
    (SourceToken::Code, at + 1)
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..rest.len().min(at + 2)] {
            // Block comments of Rust may be nested.
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(rest[0], b'b' | b'c'));
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    // A raw string ends at a quote followed by as many `#` as it began with.
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &rest[open + 1..];
    let length = body.windows(close.len()).position(|window| window == close);
    Some(length.map_or(rest.len(), |length| open + 1 + length + close.len()))
}

/// Returns the length of a character literal, or `None` if the quote opens a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        // The search begins after the escaped character, which may itself be a quote, as in `'\''`.
        let end = rest.iter().skip(3).position(|&byte| byte == b'\'')?;
        return Some(end + 4);
    }
    let text = std::str::from_utf8(&rest[1..rest.len().min(5)]);
    let first = match text {
        Ok(text) => text.chars().next(),
        Err(error) => std::str::from_utf8(&rest[1..=error.valid_up_to()]).ok()?.chars().next(),
    };
    let length = first?.len_utf8();
    (rest.get(1 + length) == Some(&b'\'')).then_some(length + 2)
}

/// Whether a byte can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the byte positions at which `word` is a whole word of `code`.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at == 0 || !is_word(bytes[at - 1]);
        before && !bytes.get(at + word.len()).is_some_and(|&byte| is_word(byte))
    })
}

/// Returns the line of a byte position, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn strings_and_comments_leave_the_code() {
        let masked = mask("let a = \"x // {\"; // note {\nb /* /* in */ { */ c");
        assert_eq!(masked.code, "let a = \"      \";          \nb                  c");
        assert_eq!(masked.comments.trim(), "// note {\n  /* /* in */ { */");
    }

    #[test]
    fn quotes_of_all_kinds() {
        let code = |text| mask(text).code;
        assert_eq!(code(r##"f(r#"a"b"#, x)"##), "f(\"      \", x)");
        assert_eq!(code(r"m('{', '\'', '\u{1F}', 'é')"), "m(\" \", \"  \", \"      \", \"  \")");
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
        assert_eq!(code(r#"b"\"" r x"#), "b\"  \" r x");
    }

    #[test]
    fn words_stand_alone() {
        let found: Vec<usize> = super::words("unsafe_code unsafe (unsafe)", "unsafe").collect();
        assert_eq!(found, [12, 20]);
        assert_eq!(super::line_of("a\nb\nc", 4), 3);
    }
}
