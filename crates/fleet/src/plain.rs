//! Text of others made safe for terminals and logs: names of jobs, commands and errors are chosen
//! by whoever runs a job.

/// The text with every control character as an escape such as `\u{1b}`, so that it neither moves a
/// terminal's cursor nor begins a line of its own.
pub fn without_controls(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        // Those that change the direction of text hide what stands beside them.
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
    fn a_name_cannot_steer_a_terminal() {
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
