//! Makes text from other programs safe for terminals and logs. Users of a host choose the names of
//! their jobs, their commands and their error texts.

/// Escapes every control character, as in `\u{1b}`, so that the text can neither move a terminal's
/// cursor nor start a new line.
pub fn without_controls(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        // Invisible characters and characters that change the direction of text could hide other
        // text.
        let is_hiding = matches!(letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{feff}');
        if letter.is_control() || is_hiding {
            plain.extend(letter.escape_unicode());
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::without_controls;

    #[test]
    fn names_cannot_control_a_terminal() {
        for (text, expected) in [
            ("train é", "train é"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\r\nb\tc", "a\\u{d}\\u{a}b\\u{9}c"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(without_controls(text), expected);
        }
    }
}
