//! Prints results and messages. Tables and JSON go to standard output, and messages to stderr. This
//! module also formats numbers, times and tables for terminals.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width,
    presets,
};
use fleet::plain::without_controls;
pub use schema::unit::{count, counted};
use serde::{Serialize, Serializer};

use crate::args::{Color, Global, OutputFormat, command_in_use};
use crate::error::{Error, UsageError};
use crate::error_text::plain;
use crate::machine;

/// The output settings of a command, with the methods that print its results and messages.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    pub format: OutputFormat,
    /// Whether messages on stderr are colored.
    pub color: bool,
    /// Number of times that `-v` was given.
    pub verbose: u8,
    /// The definition of the program's command line, so that hints name only options that it has.
    pub definition: fn() -> clap::Command,
}

impl Console {
    /// Resolves the global options that control output.
    pub fn new(global: &Global, definition: fn() -> clap::Command) -> Self {
        let color = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                io::stderr().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
            }
        };
        Self { format: global.format, color, verbose: global.verbose, definition }
    }

    /// Prints a message on stderr, without control characters.
    pub fn say(&self, text: impl std::fmt::Display) {
        // A closed stderr must not stop a training run, so the error is ignored.
        let _ = writeln!(io::stderr(), "{}", safe(&plain(&text.to_string())));
    }

    /// Prints a message after a colored prefix, without control characters.
    fn say_behind(&self, painted: String, text: impl std::fmt::Display) {
        let text = safe(&plain(&text.to_string()));
        let _ = writeln!(io::stderr(), "{painted} {text}");
    }

    /// Prints a message on stderr if `-v` was given.
    pub fn detail(&self, text: impl std::fmt::Display) {
        if self.verbose > 0 {
            self.say(text);
        }
    }

    /// Prints a warning on stderr.
    pub fn warn(&self, text: impl std::fmt::Display) {
        self.say_behind(self.paint("warning:", "1;33"), text);
    }

    /// Prints an error on stderr, with its hint if it has one.
    pub fn fail(&self, error: &Error) {
        self.say_behind(self.paint("error:", "1;31"), error);
        if let Some(hint) = error.applicable_hint(&command_in_use((self.definition)())) {
            self.say_behind(self.paint("hint:", "1;36"), hint);
        }
    }

    /// Prints `report` as one JSON line, or as the text into which `table` formats it.
    pub fn report<T: Serialize>(
        &self,
        report: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Error> {
        match self.format {
            OutputFormat::Json => self.json(report),
            OutputFormat::Table => self.print(&table(report)),
            OutputFormat::Csv | OutputFormat::Md | OutputFormat::Parquet | OutputFormat::Sarif => {
                Err(UsageError::NoTable.into())
            }
        }
    }

    /// Prints a value as one JSON line on standard output.
    pub fn json(&self, value: &impl Serialize) -> Result<(), Error> {
        self.print(&serde_json::to_string(value)?)
    }

    /// Prints a line or a table on standard output.
    pub fn print(&self, text: &str) -> Result<(), Error> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Error::output)
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Formats a table of names and values. Long values are wrapped if standard output is a terminal.
pub fn facts(rows: &[(&str, String)]) -> String {
    facts_within(machine::terminal_width(), rows)
}

fn facts_within(width: Option<usize>, rows: &[(&str, String)]) -> String {
    let mut table = table_within(width);
    for (name, value) in rows {
        table.add_row([Cell::new(name), Cell::new(value)]);
    }
    if let (Some(_), Some(names)) = (width, table.column_mut(0)) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    trimmed(&table)
}

/// Creates a table without lines. If `width` is given, its texts are wrapped within that number of
/// characters.
fn table_within(width: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Some(width) = width.and_then(|width| u16::try_from(width).ok()) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table
}

/// Formats a table with a header. Columns of numbers are aligned to the right. If standard output
/// is a terminal and the table is wider, long texts are wrapped.
pub fn grid(header: &[&str], rows: &[Vec<String>]) -> String {
    grid_within(machine::terminal_width(), header, rows)
}

/// Formats a table as [`grid`] does, with a width of at most `width` characters.
pub fn grid_within(width: Option<usize>, header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = table_within(width);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| safe(cell)));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        if is_numeric(rows, i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let least = u16::try_from(least_width(header, rows, i) + PADDING).unwrap_or(u16::MAX);
        if width.is_some() {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    trimmed(&table)
}

/// Escapes control characters, because names from files and messages of other programs could
/// contain commands for the terminal.
fn safe(text: &str) -> String {
    text.split('\n').map(without_controls).collect::<Vec<_>>().join("\n")
}

/// Returns whether every cell of a column begins with a digit or a minus sign.
fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    let numeric = |row: &Vec<String>| {
        let cell = row.get(column);
        cell.is_none_or(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    };
    !rows.is_empty() && rows.iter().all(numeric)
}

/// Number of blanks around a cell. One more blank separates two columns.
const PADDING: usize = 2;
/// Smallest width to which texts are wrapped, in characters.
const TEXT_LEAST: usize = 20;

/// Computes the smallest width at which a table is readable. Numbers and words of the header are
/// not broken, and texts are wrapped to at least [`TEXT_LEAST`] characters.
pub fn narrowest(header: &[&str], rows: &[Vec<String>]) -> usize {
    let cells: usize = (0..header.len()).map(|i| least_width(header, rows, i) + PADDING).sum();
    cells + header.len().saturating_sub(1)
}

fn least_width(header: &[&str], rows: &[Vec<String>], column: usize) -> usize {
    let length = |text: &str| text.chars().count();
    let words = header.get(column).into_iter().flat_map(|title| title.split(' ')).map(length);
    let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| length(cell));
    let cells = cells.max().unwrap_or(0);
    let cells = if is_numeric(rows, column) { cells } else { cells.min(TEXT_LEAST) };
    words.max().unwrap_or(0).max(cells)
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Serializes a path as text. Bytes that are not UTF-8 are replaced.
pub fn path_text<S: Serializer>(path: &impl AsRef<Path>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.as_ref().display())
}

/// Serializes a path as [`path_text`] does, and `None` as null.
pub fn path_text_or_null<S: Serializer>(
    path: &Option<impl AsRef<Path>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => path_text(path, to),
        None => to.serialize_none(),
    }
}

/// Formats a rate as a whole number of samples per second.
pub fn rate(per_second: f64) -> String {
    format!("{} samples/s", count(per_second.round().max(0.0) as u64))
}

/// Formats a short time with three digits, such as `812 ns`, `1.50 µs`, `13.0 ms` or `4.21 s`.
pub fn nanos(nanos: f64) -> String {
    let (value, unit) = match nanos.abs() {
        // A rounded negative time would read `-0 ns`.
        size if size < 0.5 => return "0 ns".to_owned(),
        size if size < 1e3 => return format!("{nanos:.0} ns"),
        size if size < 1e6 => (nanos / 1e3, "µs"),
        size if size < 1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let decimals = match value.abs() {
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Formats a duration, such as `4.2 s`, `3 m 20 s` or `2 h 5 m`.
pub fn duration(seconds: f64) -> String {
    if seconds < 100.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, minutes, seconds) => format!("{minutes} m {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} m"),
    }
}

#[cfg(test)]
mod tests {
    use super::{count, duration, facts, facts_within, grid, grid_within, rate};

    #[test]
    fn control_characters_are_escaped() {
        let row = vec!["a\u{1b}[2Jb".to_owned(), "two\nlines\u{7f}".to_owned()];
        let text = grid_within(None, &["job", "reason"], &[row]);
        let is_safe = |letter: char| letter == '\n' || !letter.is_control();
        assert!(text.chars().all(is_safe) && text.contains("a\\u{1b}[2Jb"), "{text}");
    }

    #[test]
    fn long_texts_are_wrapped_within_the_terminal() {
        let row = ["key", "a meaning that takes many words to say and more room than there is"];
        let row = vec![row.map(str::to_owned).to_vec()];
        let header = ["name", "meaning"];
        let text = grid_within(Some(40), &header, &row);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        // The rule below the header has the width of the table, so it is not compared.
        let words = |text: &str| -> Vec<String> {
            text.split_whitespace().filter(|w| !w.starts_with('─')).map(str::to_owned).collect()
        };
        assert_eq!(words(&text), words(&grid_within(None, &header, &row)));
        assert_eq!(grid_within(None, &header, &row).lines().count(), 3);
    }

    #[test]
    fn long_facts_are_wrapped_beside_their_names() {
        let rows = [("adds up", "many words of one fact ".repeat(5)), ("loss", "0.5".to_owned())];
        let text = facts_within(Some(40), &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= 40), "{text}");
        assert!(lines[1].starts_with("          "), "{text}");
        assert_eq!(facts_within(None, &rows).lines().count(), 2);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(rate(12_345.6), "12,346 samples/s");
        assert_eq!([4.24, 200.0, 7500.0].map(duration), ["4.2 s", "3 m 20 s", "2 h 5 m"]);
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let text = grid(&["name", "rows"], &[vec!["a".into(), "10".into()]]);
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
        assert!(facts(&[("loss", "0.5".into())]).contains("loss"));
    }
}
