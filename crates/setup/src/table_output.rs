//! Writes the rows of an analysis as a table for people, or as JSON, CSV, Markdown or Parquet.
//!
//! All formats use the columns that `schema/table.rs` derives from the struct of a row, so an empty
//! table has its columns too. This module does not interpret the rows.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use data::{ColumnValues, TableColumn};
use schema::{Column, ColumnType, ColumnUnit, TableRow};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::args::OutputFormat;
use crate::error::{Error, UsageError};
use crate::render::{self, Console};
use crate::{machine, output};

/// Number of rows of a table for people, unless the user asks for another number.
pub const TOP: usize = 20;

/// A year in nanoseconds. Later times are assumed to count from 1970.
const SINCE_1970: i64 = 31_536_000_000_000_000;

/// The place where rows are written, and the number of rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableTarget<'a> {
    /// The file to write, or `None` for standard output.
    pub output: Option<&'a Path>,
    pub top: Option<usize>,
}

/// Prints or writes rows in the format of the console.
///
/// # Errors
/// Returns an error if the output cannot be written.
pub fn write_rows<T: Serialize + TableRow>(
    console: Console,
    rows: &[T],
    target: TableTarget<'_>,
) -> Result<(), Error> {
    write_rows_with_cut_notice(console, rows, target, None)
}

/// Writes rows as [`write_rows`] does. If parts of the recordings are missing, every row has an
/// additional column `recording_cut` that describes them. The table for people has no such column.
///
/// # Errors
/// Returns an error if the output cannot be written.
pub fn write_rows_with_cut_notice<T: Serialize + TableRow>(
    console: Console,
    rows: &[T],
    target: TableTarget<'_>,
    recording_cut: Option<&str>,
) -> Result<(), Error> {
    let row_text = |row: usize| serde_json::to_string(&rows[row]);
    let mut table = Table { columns: T::columns(), count: rows.len(), row_text: &row_text };
    let Some(notice) = recording_cut.filter(|_| console.format != OutputFormat::Table) else {
        return write_table(console, &table, target);
    };
    // A table without rows gets one row that contains only the notice. Without the notice, the
    // table would appear to be complete.
    for column in &mut table.columns {
        column.is_nullable = true;
    }
    table.columns.push(Column::new::<&str>("recording_cut"));
    table.count = rows.len().max(1);
    let notice = serde_json::to_string(notice)?;
    let marked_text = |row: usize| {
        let text = if rows.is_empty() { "{}".to_owned() } else { row_text(row)? };
        let fields = text.strip_suffix('}').unwrap_or(&text);
        let comma = if fields == "{" { "" } else { "," };
        Ok(format!("{fields}{comma}\"recording_cut\":{notice}}}"))
    };
    write_table(console, &Table { row_text: &marked_text, ..table }, target)
}

/// A page with an additional field about missing parts of the recordings. Programs read the field,
/// because they do not see the warning on stderr.
#[derive(Serialize)]
pub struct WithCutNotice<'a, T> {
    #[serde(flatten)]
    pub content: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording_cut: Option<&'a str>,
}

/// Rows of any type. The type appears only in the closure that writes a row as JSON, so that the
/// code below is compiled once and not for each of a hundred types.
struct Table<'a> {
    columns: Vec<Column>,
    /// Number of rows of the table.
    count: usize,
    /// Writes the row of a number as a JSON object.
    row_text: &'a dyn Fn(usize) -> serde_json::Result<String>,
}

fn write_table(console: Console, table: &Table<'_>, target: TableTarget<'_>) -> Result<(), Error> {
    // People read only the first rows, but programs that read the other formats need all of them.
    let shown = target.top.unwrap_or(match console.format {
        OutputFormat::Table => TOP,
        _ => usize::MAX,
    });
    let shown = table.count.min(shown);
    if table.count == 0 {
        console.say("no rows");
    }
    let sheet = || table.sheet(shown);
    if console.format == OutputFormat::Parquet {
        let Some(path) = target.output else { return Err(UsageError::ParquetToStdout.into()) };
        let bytes = data::encode_table(path, sheet()?.into_columns())?;
        return output::put(path, |file| file.write_all(&bytes).map_err(Error::output));
    }
    let text = |out: &mut dyn Write| -> Result<(), Error> {
        match console.format {
            OutputFormat::Json => table.write_json(shown, out),
            OutputFormat::Csv => sheet()?.write_csv(out),
            OutputFormat::Md => sheet()?.write_markdown(out),
            _ => {
                let width = target.output.is_none().then(machine::terminal_width).flatten();
                let hidden = sheet()?.write_for_people(out, width)?;
                if hidden > 0 {
                    let columns = render::counted(hidden as u64, "more column");
                    console.say(format_args!("{columns} with --format csv"));
                }
                Ok(())
            }
        }
    };
    deliver(target.output, text)?;
    if shown < table.count && target.top.is_none() {
        console.say(format_args!(
            "{shown} of {} rows; all with --format csv",
            render::count(table.count as u64)
        ));
    }
    Ok(())
}

/// Writes the whole text to a file or to standard output. If writing fails, no partial file is
/// left.
pub fn deliver(
    output: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(path) = output else {
        let mut out = BufWriter::new(io::stdout().lock());
        write(&mut out)?;
        return out.flush().map_err(Error::output);
    };
    output::put(path, |file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush().map_err(Error::output)
    })
}

/// The cells of a table. Lists and objects within a row are left out, because they appear in JSON
/// and have tables of their own.
struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
}

impl Table<'_> {
    fn write_json(&self, shown: usize, out: &mut dyn Write) -> Result<(), Error> {
        for row in 0..shown {
            let text = (self.row_text)(row)?;
            write!(out, "{}{text}", if row == 0 { "[" } else { "," }).map_err(Error::output)?;
        }
        writeln!(out, "{}", if shown == 0 { "[]" } else { "]" }).map_err(Error::output)
    }

    fn sheet(&self, shown: usize) -> Result<Sheet, Error> {
        let mut columns = self.columns.clone();
        columns.retain(|column| column.value_type != ColumnType::Nested);
        let cells = |row: usize| -> Result<Vec<Value>, Error> {
            // The row is converted through JSON text, so that an f32 keeps its few digits.
            let mut fields: Map<String, Value> = serde_json::from_str(&(self.row_text)(row)?)?;
            let cell = |column: &Column| fields.remove(column.name).unwrap_or_default();
            Ok(columns.iter().map(cell).collect())
        };
        let rows = (0..shown).map(cells).collect::<Result<_, _>>()?;
        Ok(Sheet { columns, rows })
    }
}

impl Sheet {
    fn write_csv(&self, out: &mut dyn Write) -> Result<(), Error> {
        let line = |cells: Vec<String>| cells.join(",");
        let header = line(self.columns.iter().map(|column| quoted(column.name)).collect());
        writeln!(out, "{header}").map_err(Error::output)?;
        for row in &self.rows {
            let cells = row.iter().map(|value| quoted(&plain(value))).collect();
            writeln!(out, "{}", line(cells)).map_err(Error::output)?;
        }
        Ok(())
    }

    fn write_markdown(&self, out: &mut dyn Write) -> Result<(), Error> {
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let names = self.columns.iter().map(|column| column.name.to_owned());
        let rule = self.columns.iter().map(|column| match column.is_number() {
            true => "--:".to_owned(),
            false => "---".to_owned(),
        });
        let mut lines = vec![line(names.collect()), line(rule.collect())];
        for row in &self.rows {
            lines.push(line(row.iter().map(|value| plain(value).replace('|', "\\|")).collect()));
        }
        writeln!(out, "{}", lines.join("\n")).map_err(Error::output)
    }

    /// Writes a grid of the columns that have a value, or of all columns if there are no rows. On a
    /// terminal, the last columns are left out if the grid does not fit. Returns the number of
    /// columns that were left out.
    fn write_for_people(&self, out: &mut dyn Write, width: Option<usize>) -> Result<usize, Error> {
        let filled = |i: &usize| {
            self.rows.is_empty() || self.rows.iter().any(|row| !plain(&row[*i]).is_empty())
        };
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(filled).collect();
        let all = shown.len();
        let text = loop {
            let (titles, rows) = self.for_people(&shown);
            let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
            let fits = |width| render::narrowest(&titles, &rows) <= width;
            if shown.len() <= 2 || width.is_none_or(fits) {
                break render::grid_within(width, &titles, &rows);
            }
            // The first columns identify a row, and the most important figures follow, so the last
            // columns are dropped.
            shown.pop();
        };
        writeln!(out, "{text}").map_err(Error::output)?;
        Ok(all - shown.len())
    }

    /// Formats the titles and the cells of the given columns.
    fn for_people(&self, shown: &[usize]) -> (Vec<String>, Vec<Vec<String>>) {
        // Times since 1970 are hard to read, so times since the first row are shown instead.
        let since_1970 = |i: usize| {
            let least = self.rows.iter().filter_map(|row| row[i].as_i64()).min();
            let unit = self.columns[i].unit();
            least.filter(|least| *least > SINCE_1970 && unit == Some(ColumnUnit::Nanoseconds))
        };
        let first = shown.iter().filter_map(|i| since_1970(*i)).min();
        let firsts: Vec<Option<i64>> = shown.iter().map(|i| since_1970(*i).and(first)).collect();
        let titled = |(i, first): (&usize, &Option<i64>)| {
            let plain = title(self.columns[*i].name);
            if first.is_some() { format!("{plain} since first") } else { plain }
        };
        let titles: Vec<String> = shown.iter().zip(&firsts).map(titled).collect();
        let cells = |row: &Vec<Value>| {
            let cell = |(i, first): (&usize, &Option<i64>)| match (first, row[*i].as_i64()) {
                (Some(first), Some(time)) => render::nanos((time - first) as f64),
                _ => for_people(self.columns[*i], &row[*i]),
            };
            shown.iter().zip(&firsts).map(cell).collect()
        };
        (titles, self.rows.iter().map(cells).collect())
    }

    fn into_columns(self) -> Vec<TableColumn> {
        let column = |(i, column): (usize, &Column)| {
            let values = || self.rows.iter().map(|row| &row[i]);
            let values = match column.value_type {
                ColumnType::Integer => {
                    ColumnValues::Integers(values().map(Value::as_i64).collect())
                }
                ColumnType::Unsigned => {
                    ColumnValues::Unsigned(values().map(Value::as_u64).collect())
                }
                ColumnType::Float => {
                    // JSON cannot represent a non-finite float, so null stands for it.
                    let missing = (!column.is_nullable).then_some(f64::NAN);
                    let float = |value: &Value| value.as_f64().or(missing);
                    ColumnValues::Floats(values().map(float).collect())
                }
                ColumnType::Boolean => {
                    ColumnValues::Booleans(values().map(Value::as_bool).collect())
                }
                ColumnType::Text | ColumnType::Nested => {
                    let text = |value: &Value| value.as_str().map(str::to_owned);
                    ColumnValues::Text(values().map(text).collect())
                }
            };
            TableColumn { name: column.name.to_owned(), is_nullable: column.is_nullable, values }
        };
        self.columns.iter().enumerate().map(column).collect()
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Formats the name of a column as a title, such as `exposed_communication_ns` as `exposed
/// communication` and `idle_pct` as `idle %`.
fn title(column: &str) -> String {
    let plain = column.strip_suffix("_ns").unwrap_or(column).replace("_ns_", "_");
    let plain = plain.as_str();
    let plain = match plain.strip_suffix("_pct") {
        Some(share) => format!("{share} %"),
        None => plain.to_owned(),
    };
    plain.replace('_', " ")
}

fn for_people(column: Column, value: &Value) -> String {
    const WIDEST: usize = 60;
    let number = value.as_f64();
    let unit = column.unit();
    match number {
        Some(nanos) if unit == Some(ColumnUnit::Nanoseconds) => render::nanos(nanos),
        // A rounded negative share would read `-0.0`.
        Some(share) if unit == Some(ColumnUnit::Percent) && share.abs() < 0.05 => "0.0".to_owned(),
        Some(share) if unit == Some(ColumnUnit::Percent) => format!("{share:.1}"),
        Some(bytes) if unit == Some(ColumnUnit::Bytes) && bytes >= 0.0 => {
            schema::Bytes(bytes as u64).to_string()
        }
        Some(_) if value.is_u64() => render::count(value.as_u64().unwrap_or_default()),
        // Decimals of a large number would exceed the precision of the measurement, so they are
        // rounded away.
        Some(number) if value.is_f64() && number >= 1e3 => render::count(number.round() as u64),
        Some(number) if value.is_f64() => format!("{number:.3}"),
        _ => {
            let text = plain(value);
            if text.is_empty() {
                return "-".to_owned();
            }
            // The text is cut between characters, because names of kernels may contain any text.
            let cut = text.chars().count() > WIDEST;
            let kept: String = text.chars().take(WIDEST - 1).collect();
            if cut { format!("{kept}…") } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, TableRow)]
    struct Row {
        rank: u32,
        name: &'static str,
        busy_ns: i64,
        idle_pct: Option<f64>,
    }

    fn sheet<T: Serialize + TableRow>(rows: &[T]) -> Sheet {
        let row_text = |row: usize| serde_json::to_string(&rows[row]);
        let table = Table { columns: T::columns(), count: rows.len(), row_text: &row_text };
        table.sheet(rows.len()).unwrap()
    }

    fn written(write: impl FnOnce(&Sheet, &mut dyn Write) -> Result<(), Error>) -> String {
        let rows = [
            Row { rank: 1, name: "a, \"b\"|", busy_ns: 1_500, idle_pct: Some(49.25) },
            Row { rank: 0, name: "c", busy_ns: -3, idle_pct: None },
        ];
        let mut out = Vec::new();
        write(&sheet(&rows), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_follow_the_order_of_the_fields() {
        let csv = written(Sheet::write_csv);
        assert_eq!(csv, "rank,name,busy_ns,idle_pct\n1,\"a, \"\"b\"\"|\",1500,49.25\n0,c,-3,\n");
        let markdown = written(Sheet::write_markdown);
        assert!(
            markdown.starts_with("| rank | name | busy_ns | idle_pct |\n| --: | --- | --: | --: |")
        );
        assert!(markdown.contains("a, \"b\"\\|"), "{markdown}");
    }

    /// On a narrow terminal, texts must be wrapped and the last columns left out, and numbers must
    /// not be broken.
    #[test]
    fn columns_that_do_not_fit_are_dropped_from_the_end() {
        #[derive(Serialize, TableRow)]
        struct Wide {
            name: &'static str,
            busy_ns: i64,
            exposed_communication_ns: i64,
            idle_pct: f64,
        }
        let name = "void at::native::vectorized_elementwise_kernel, which is a long name";
        let row = || Wide { name, busy_ns: 1_500, exposed_communication_ns: 25, idle_pct: 4.0 };
        let sheet = sheet(&[row(), row()]);
        let shown = |width| {
            let mut out = Vec::new();
            let hidden = sheet.write_for_people(&mut out, Some(width)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            assert!(text.contains("1.50 µs"), "{width}: a number is cut\n{text}");
            hidden
        };
        assert_eq!([200, 55, 54, 48, 47].map(shown), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn people_read_units() {
        let text = written(|sheet, out| sheet.write_for_people(out, None).map(drop));
        assert!(text.contains("1.50 µs") && text.contains("idle %"), "{text}");
    }
}
