//! `cargo xtask tidy --fix` wraps long comments and strips trailing blanks. Code is not changed.

use crate::tidy::text::COLUMNS;

/// Wraps the comments of a text at the line limit. Tables, indented and fenced blocks are
/// unchanged.
pub fn wrap_comments(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut carried: Option<(String, String)> = None;
    let mut fenced = false;
    for line in text.lines() {
        let line = line.trim_end();
        let (prefix, body) = split_line(line);
        fenced ^= body.starts_with("```");
        let mut current = line.to_owned();
        if let Some((old, words)) = carried.take() {
            if prefix == old && continues_paragraph(body) && !fenced {
                current = format!("{old}{words} {body}");
            } else {
                out.extend(break_words(&old, &words));
            }
        }
        let fixed =
            fenced || prefix.is_empty() || body.starts_with(['|', ' ', '#']) || is_list_item(body);
        if !fixed && current.chars().count() > COLUMNS {
            let mut lines = break_words(prefix, &current[prefix.len()..]);
            let last = lines.pop().unwrap_or_default();
            carried = Some((prefix.to_owned(), last[prefix.len()..].to_owned()));
            out.extend(lines);
        } else {
            out.push(current);
        }
    }
    if let Some((prefix, words)) = carried {
        out.extend(break_words(&prefix, &words));
    }
    out.push(String::new());
    out.join("\n")
}

/// Splits a line into its indent with the comment mark and the rest of the line. The first part is
/// empty if the line is not a comment.
fn split_line(line: &str) -> (&str, &str) {
    let indent = line.len() - line.trim_start().len();
    let marks = ["/// ", "//! ", "// "];
    let mark = marks.iter().find(|mark| line[indent..].starts_with(**mark));
    line.split_at(mark.map_or(0, |mark| indent + mark.len()))
}

/// Whether a comment line continues the paragraph of the line before it.
fn continues_paragraph(body: &str) -> bool {
    let first = body.chars().next();
    first.is_some_and(|c| c.is_alphanumeric() || "`([\"'".contains(c))
        && !body.starts_with("```")
        && !is_list_item(body)
}

/// Whether a comment line begins an item of a list: `- …`, `* …` or `1. …`.
fn is_list_item(body: &str) -> bool {
    let after_number = body.trim_start_matches(|c: char| c.is_ascii_digit());
    body.starts_with("- ")
        || body.starts_with("* ")
        || (after_number.len() < body.len() && after_number.starts_with(". "))
}

fn break_words(prefix: &str, words: &str) -> Vec<String> {
    let mut lines = vec![prefix.trim_end().to_owned()];
    for word in words.split(' ') {
        let last = lines.len() - 1;
        let fits = lines[last].chars().count() + 1 + word.chars().count() <= COLUMNS;
        if fits || lines[last].len() < prefix.len() {
            lines[last] = format!("{} {word}", lines[last]);
        } else {
            lines.push(format!("{prefix}{word}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap_comments;

    #[test]
    fn the_overflow_goes_to_the_next_line_of_the_paragraph() {
        let long = "word ".repeat(20);
        let text = format!("    /// {long}end\n    /// more.\n    fn f() {{}}\n");
        let line = "word ".repeat(18);
        let expected =
            format!("    /// {}\n    /// word word end more.\n    fn f() {{}}\n", line.trim());
        assert_eq!(wrap_comments(&text), expected);
        assert_eq!(wrap_comments(&expected), expected);
    }

    #[test]
    fn no_code_of_the_repository_changes() {
        let tree = crate::tree::SourceTree::read(&crate::tree::root()).unwrap();
        for (path, text) in tree.rust() {
            let tokens = |text: &str| {
                let code = crate::mask::mask(text).code;
                code.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            };
            assert!(tokens(&wrap_comments(text)) == tokens(text), "{path}");
        }
    }

    #[test]
    fn items_of_a_list_stay_apart() {
        let text = format!("//! 1. {}\n//! 2. short\n", "word ".repeat(25).trim());
        assert_eq!(wrap_comments(&text), text);
    }

    #[test]
    fn tables_fences_code_and_new_items_stay() {
        let long = "word ".repeat(25);
        for text in [
            format!("/// | {} |\n", long.trim()),
            format!("/// ```\n/// {}\n/// ```\n", long.trim()),
            format!("let a = \"{long}\";\n"),
        ] {
            assert_eq!(wrap_comments(&text), text);
        }
        let text = format!("// {}\n// - item\n", long.trim());
        assert!(wrap_comments(&text).ends_with("word\n// - item\n"));
    }
}
