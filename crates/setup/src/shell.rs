//! Quotes words for command lines that users paste into a shell.

/// Quotes a word for a POSIX shell, if the word needs quotes.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("a/b-c.toml"), "a/b-c.toml");
        assert_eq!(quoted("bottom=[8, 4]"), "'bottom=[8, 4]'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
