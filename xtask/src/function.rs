//! Finds the functions of a masked Rust file with their length and number of parameters. The search
//! counts braces instead of parsing, so it also finds functions inside macros.

use crate::mask::{is_word, line_of, words};

/// The name, place and size of a function that has a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Line of the keyword `fn`, counted from 1.
    pub line: usize,
    /// Number of lines of code between the braces, without blank lines and comments.
    pub length: usize,
    /// Number of parameters, including the receiver.
    pub parameters: usize,
}

/// Finds all functions that have a body, in order. A nested function is also listed separately.
pub fn find_functions(code: &str) -> Vec<Function> {
    words(code, "fn").filter_map(|at| parse_function(code, at)).collect()
}

fn parse_function(code: &str, at: usize) -> Option<Function> {
    let bytes = code.as_bytes();
    let start = at + 2 + code[at + 2..].bytes().take_while(u8::is_ascii_whitespace).count();
    let end = start + code[start..].bytes().take_while(|&byte| is_word(byte)).count();
    // A `fn` without a name is a function type such as `fn(u32) -> bool`.
    if start == end {
        return None;
    }
    let open = skip_generics(bytes, end)?;
    let close = find_closing(bytes, open)?;
    let body = body_start(bytes, close + 1)?;
    let last = find_closing(bytes, body)?;
    Some(Function {
        name: code[start..end].to_owned(),
        line: line_of(code, at),
        length: code[body + 1..last].lines().filter(|line| !line.trim().is_empty()).count(),
        parameters: count_parameters(&code[open + 1..close]),
    })
}

/// Returns the position of the parenthesis that opens the parameter list, after any generics.
fn skip_generics(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0;
    loop {
        match bytes.get(at)? {
            // The `>` of an arrow `->` does not close generics.
            b'-' if bytes.get(at + 1) == Some(&b'>') => at += 1,
            b'<' => depth += 1,
            b'>' => depth -= 1,
            b'(' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

/// Returns the position of the brace or parenthesis that closes the one at `open`.
fn find_closing(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Returns the position of the brace that opens the body, or `None` for a declaration without a
/// body.
fn body_start(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'{' => return Some(at),
            b';' => return None,
            b'(' | b'[' => at = find_closing(bytes, at)?,
            _ => {}
        }
        at += 1;
    }
}

fn count_parameters(list: &str) -> usize {
    let bytes = list.as_bytes();
    let (mut depth, mut count, mut filled) = (0, 0, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            // The `>` of an arrow `->` does not close generics.
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b')' | b']' | b'}' | b'>' => depth -= 1,
            b',' if depth == 0 => {
                count += usize::from(filled);
                filled = false;
                continue;
            }
            _ => {}
        }
        filled |= !byte.is_ascii_whitespace();
    }
    count + usize::from(filled)
}

#[cfg(test)]
mod tests {
    use super::find_functions;
    use crate::mask::mask;

    fn check(text: &str, expected: &[(&str, usize, usize)]) {
        let found = find_functions(&mask(text).code);
        let found: Vec<_> =
            found.iter().map(|f| (f.name.as_str(), f.length, f.parameters)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn comments_and_blank_lines_do_not_count() {
        check("fn a() {\n    // why\n\n    one();\n    two();\n}\n", &[("a", 2, 0)]);
    }

    #[test]
    fn parameters_are_counted_across_generics() {
        check("fn a<F: Fn(u8) -> u8>(&self, f: F, m: Map<K, V>,) -> [u8; 3] { x }", &[("a", 1, 3)]);
        check("fn b(f: impl Fn(u8, u8) -> Vec<(u8, u8)>, (x, y): (u8, u8)) {}", &[("b", 0, 2)]);
    }

    #[test]
    fn declarations_and_function_types_have_no_body() {
        check("trait T { fn a(&self) -> [u8; 2]; } type F = fn(u8);", &[]);
    }

    #[test]
    fn nested_functions_are_found() {
        check("fn a() {\n  fn b(x: u8) {\n    c();\n  }\n}", &[("a", 3, 0), ("b", 1, 1)]);
    }
}
