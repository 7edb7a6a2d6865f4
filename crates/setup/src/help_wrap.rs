//! Wraps the text that follows the options in `--help`. Prose is wrapped at the width of the
//! terminal, and the explanation of a name is wrapped within its own column.

use clap::Command;

/// Largest width of `--help` in columns, which both programs set as `max_term_width`.
const WIDTH: usize = 100;

/// Wraps the help texts of `command` and of all its subcommands.
pub fn wrap_help(command: Command) -> Command {
    let text = command.get_after_help().map(|text| laid_out(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    let verbs: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    verbs.into_iter().fold(command, |command, verb| command.mut_subcommand(verb, wrap_help))
}

/// Joins lines of prose, which clap wraps at the width of the terminal, and wraps explanations.
fn laid_out(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    // The column in which the explanation of the current entry begins, if the line is an entry.
    let mut column = None;
    let mut goes_on = false;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match (out.last_mut(), column) {
            (Some(last), Some(at)) if at > 0 && indent == at => {
                last.push(' ');
                last.push_str(line.trim_start());
                continue;
            }
            (Some(last), _) if indent == 0 && goes_on && !line.is_empty() => {
                last.push(' ');
                last.push_str(line);
                goes_on = is_prose(line);
                continue;
            }
            _ => {}
        }
        column = explanation(line);
        goes_on = is_prose(line);
        out.push(line.to_owned());
    }
    let wrapped = out.iter().map(|line| match explanation(line) {
        Some(at) => wrapped(line, at),
        None => line.clone(),
    });
    wrapped.collect::<Vec<_>>().join("\n")
}

/// Returns whether the paragraph of a line continues in the next line, because this line is full.
fn is_prose(line: &str) -> bool {
    const FILLED: usize = 80;
    !line.starts_with(' ') && line.len() >= FILLED
}

/// Returns the column in which the explanation begins in a line such as `  name    explanation`.
fn explanation(line: &str) -> Option<usize> {
    let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
    let gap = name.find("  ")?;
    let rest = name[gap..].len() - name[gap..].trim_start().len();
    Some(2 + gap + rest)
}

/// Wraps `line` at the largest width, and indents its continuation to column `at`.
fn wrapped(line: &str, at: usize) -> String {
    let (mut out, mut width) = (line[..at].to_owned(), at);
    for (i, word) in line[at..].split(' ').enumerate() {
        let letters = word.chars().count();
        if i > 0 && width + 1 + letters > WIDTH {
            out += &format!("\n{}", " ".repeat(at));
            width = at;
        } else if i > 0 {
            out.push(' ');
            width += 1;
        }
        out += word;
        width += letters;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::laid_out;

    #[test]
    fn prose_flows_and_columns_stay() {
        let long = "word ".repeat(18);
        let text =
            format!("Examples:\n  rowmill x    {long}end\n               more\n\n{long}a\nb.\nNew");
        let lines = laid_out(&text);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "Examples:");
        assert!(lines[1].starts_with("  rowmill x    word") && lines[1].len() <= 100, "{lines:?}");
        assert!(lines[2].starts_with("               word"), "{lines:?}");
        assert!(lines[2].ends_with("end more"), "{lines:?}");
        assert_eq!(lines[3], "");
        assert_eq!(lines[4..], [format!("{long}a b.").as_str(), "New"]);
    }

    #[test]
    fn a_short_line_ends_a_paragraph() {
        assert_eq!(laid_out("One.\nTwo."), "One.\nTwo.");
        let long = "word ".repeat(18);
        let text = format!("{long}\nend.\nNew.");
        assert_eq!(laid_out(&text), format!("{long} end.\nNew."));
    }
}
