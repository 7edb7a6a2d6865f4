//! Repairs text that is almost JSON. The repair considers only the syntax, not the meaning.

/// A stack of the closing brackets that are still expected.
#[derive(Default)]
struct OpenBrackets {
    brackets: Vec<char>,
    /// Number of braces in the stack. The number is stored so that an unmatched brace is detected
    /// without a search. Texts may be deeply nested and have many unmatched brackets.
    braces: usize,
}

impl OpenBrackets {
    fn push(&mut self, closing: char) {
        self.braces += usize::from(closing == '}');
        self.brackets.push(closing);
    }

    fn pop(&mut self) -> Option<char> {
        let closing = self.brackets.pop()?;
        self.braces -= usize::from(closing == '}');
        Some(closing)
    }

    fn has(&self, closing: char) -> bool {
        if closing == '}' { self.braces > 0 } else { self.brackets.len() > self.braces }
    }
}

/// Repairs the object at the start of `text`. Commas are inserted and removed, bare words are
/// quoted, and control characters are escaped. Open brackets are closed unless the text was cut
/// off. Returns `None` if the text was cut off, or if a string in it has no end.
pub fn repair(text: &[u8], is_cut_off: bool) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let mut out = String::with_capacity(text.len() + 16);
    let mut open = OpenBrackets::default();
    let mut rest: &str = &text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => {
                separate(&mut out);
                quoted(rest, &mut out)?
            }
            '{' | '[' => {
                separate(&mut out);
                open.push(if first == '{' { '}' } else { ']' });
                out.push(first);
                1
            }
            '}' | ']' => {
                close(&mut out, &mut open, first)?;
                if open.brackets.is_empty() {
                    return Some(out);
                }
                1
            }
            ',' | ':' => {
                if ends_value(&out) {
                    out.push(first);
                }
                1
            }
            space if space.is_whitespace() => space.len_utf8(),
            _ => {
                separate(&mut out);
                bare(rest, &mut out)
            }
        };
        rest = &rest[length..];
    }
    if is_cut_off {
        return None;
    }
    while let Some(bracket) = open.brackets.last().copied() {
        close(&mut out, &mut open, bracket)?;
    }
    Some(out)
}

/// Whether a value has just ended, so that a comma must follow.
fn ends_value(out: &str) -> bool {
    !out.is_empty() && !out.ends_with(['{', '[', ',', ':'])
}

fn separate(out: &mut String) {
    if ends_value(out) {
        out.push(',');
    }
}

/// Closes all brackets up to the matching one. A closing bracket that matches no open bracket is
/// dropped.
fn close(out: &mut String, open: &mut OpenBrackets, bracket: char) -> Option<()> {
    if !open.has(bracket) {
        return Some(());
    }
    loop {
        let inner = open.pop()?;
        if out.ends_with(',') {
            out.pop();
        }
        if out.ends_with(':') {
            out.push_str("null");
        }
        out.push(inner);
        if inner == bracket {
            return Some(());
        }
    }
}

/// Copies a quoted string to `out`, and returns its length in the source.
fn quoted(source: &str, out: &mut String) -> Option<usize> {
    out.push('"');
    let mut characters = source.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                out.push('"');
                return Some(at + 1);
            }
            '\\' => {
                let is_known = |next: char| "\"\\/bfnrtu".contains(next);
                match characters.next_if(|(_, next)| is_known(*next)) {
                    Some((_, next)) => out.extend(['\\', next]),
                    None => out.push_str("\\\\"),
                }
            }
            control if u32::from(control) < 0x20 => {
                out.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            _ => out.push(character),
        }
    }
    None
}

/// Copies a number or a word to `out`, and returns its length in the source.
fn bare(source: &str, out: &mut String) -> usize {
    let ends = |c: char| c.is_whitespace() || "{}[],:\"".contains(c);
    let word = &source[..source.find(ends).unwrap_or(source.len())];
    let is_json =
        matches!(word, "true" | "false" | "null") || word.parse::<serde_json::Number>().is_ok();
    if is_json {
        out.push_str(word);
    } else {
        out.push_str(&serde_json::Value::from(word).to_string());
    }
    word.len()
}

#[cfg(test)]
mod tests {
    use super::repair;

    #[test]
    fn unmatched_brackets_are_dropped() {
        let repaired = |text: &str| repair(text.as_bytes(), false);
        assert_eq!(repaired("{\"a\": 1]}").as_deref(), Some("{\"a\":1}"));
        assert_eq!(repaired("{\"a\": [1}").as_deref(), Some("{\"a\":[1]}"));
        assert_eq!(repaired("{\"a\": [{\"b\": 1]").as_deref(), Some("{\"a\":[{\"b\":1}]}"));
        assert_eq!(repaired("[1}, 2").as_deref(), Some("[1,2]"));
    }

    #[test]
    fn repair_time_is_linear_in_nesting_depth() {
        // A search through half a million brackets for each of half a million closing brackets
        // would take minutes.
        let deep = "[".repeat(500_000) + &"}".repeat(500_000);
        assert_eq!(repair(deep.as_bytes(), false).map(|text| text.len()), Some(1_000_000));
    }
}
