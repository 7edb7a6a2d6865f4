//! Rows of an analysis as a table: for people, or as JSON, CSV, Markdown or Parquet.
//!
//! A row is any flat struct; its field names are the columns and say the unit (`…_ns`, `…_pct`,
//! `…_bytes`). Knows nothing of what the rows mean.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use data::{ColumnValues, TableColumn};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::args::OutputFormat;
use crate::error::{Error, UsageError};
use crate::render::{self, Console};
use crate::{machine, output};

/// Rows of a table for people, unless they ask for another number.
const TOP: usize = 20;

/// A year of nanoseconds: later times count from 1970.
const SINCE_1970: i64 = 31_536_000_000_000_000;

/// Where and how much.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableTarget<'a> {
    /// A file instead of stdout.
    pub output: Option<&'a Path>,
    pub top: Option<usize>,
}

/// Prints or writes rows in the format of the console.
pub fn write_rows<T: Serialize>(
    console: Console,
    rows: &[T],
    target: TableTarget<'_>,
) -> Result<(), Error> {
    let shown = target.top.unwrap_or(match console.format {
        OutputFormat::Table => TOP,
        _ => usize::MAX,
    });
    let total = rows.len();
    let rows = &rows[..total.min(shown)];
    if total == 0 {
        console.say("no rows");
    }
    if console.format == OutputFormat::Parquet {
        let Some(path) = target.output else { return Err(UsageError::ParquetToStdout.into()) };
        if total == 0 {
            // Without a row there are no columns to write.
            console.warn(format_args!("{}: not written", path.display()));
            return Ok(());
        }
        let bytes = data::encode_table(path, Sheet::from_rows(rows)?.into_columns())?;
        return output::put(path, |file| file.write_all(&bytes).map_err(Error::output));
    }
    let text = |out: &mut dyn Write| -> Result<(), Error> {
        match console.format {
            OutputFormat::Json => write_json(rows, out),
            OutputFormat::Csv => Sheet::from_rows(rows)?.write_csv(out),
            OutputFormat::Md => Sheet::from_rows(rows)?.write_markdown(out),
            _ => {
                let width = target.output.is_none().then(machine::terminal_width).flatten();
                let hidden = Sheet::from_rows(rows)?.write_for_people(out, width)?;
                if hidden > 0 {
                    let columns = render::counted(hidden as u64, "more column");
                    console.say(format_args!("{columns} with --format csv"));
                }
                Ok(())
            }
        }
    };
    deliver(target.output, text)?;
    if rows.len() < total && target.top.is_none() {
        console.say(format_args!(
            "{} of {} rows; more with --top N, all with --format csv",
            rows.len(),
            render::count(total as u64)
        ));
    }
    Ok(())
}

/// Writes to a file, whole or not at all, or to stdout.
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

fn write_json<T: Serialize>(rows: &[T], out: &mut dyn Write) -> Result<(), Error> {
    serde_json::to_writer(&mut *out, rows).map_err(json_error)?;
    writeln!(out).map_err(Error::output)
}

fn json_error(error: serde_json::Error) -> Error {
    if error.is_io() { Error::output(error.into()) } else { error.into() }
}

/// Rows with their columns in the order of the struct's fields.
struct Sheet {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// The fields of one row, in order.
struct RowFields(Vec<(String, Value)>);

impl Sheet {
    fn from_rows<T: Serialize>(rows: &[T]) -> Result<Self, Error> {
        let mut sheet = Self { columns: Vec::new(), rows: Vec::with_capacity(rows.len()) };
        for row in rows {
            let text = serde_json::to_string(row)?;
            let RowFields(mut fields) = serde_json::from_str(&text)?;
            // Lists within a row are for JSON; they have tables of their own.
            fields.retain(|(_, value)| !value.is_array() && !value.is_object());
            if sheet.columns.is_empty() {
                sheet.columns = fields.iter().map(|(name, _)| name.clone()).collect();
            }
            sheet.rows.push(fields.into_iter().map(|(_, value)| value).collect());
        }
        Ok(sheet)
    }

    fn write_csv(&self, out: &mut dyn Write) -> Result<(), Error> {
        let line = |cells: Vec<String>| cells.join(",");
        let header = line(self.columns.iter().map(|name| quoted(name)).collect());
        writeln!(out, "{header}").map_err(Error::output)?;
        for row in &self.rows {
            let cells = row.iter().map(|value| quoted(&plain(value))).collect();
            writeln!(out, "{}", line(cells)).map_err(Error::output)?;
        }
        Ok(())
    }

    fn write_markdown(&self, out: &mut dyn Write) -> Result<(), Error> {
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let rule = self.columns.iter().enumerate().map(|(i, _)| {
            let numeric = self.rows.iter().any(|row| row[i].is_number());
            if numeric { "--:".to_owned() } else { "---".to_owned() }
        });
        let mut lines = vec![line(self.columns.clone()), line(rule.collect())];
        for row in &self.rows {
            lines.push(line(row.iter().map(|value| plain(value).replace('|', "\\|")).collect()));
        }
        writeln!(out, "{}", lines.join("\n")).map_err(Error::output)
    }

    /// Columns without any value are left out, and on a terminal those that do not fit; returns how
    /// many of the latter.
    fn write_for_people(&self, out: &mut dyn Write, width: Option<usize>) -> Result<usize, Error> {
        if self.rows.is_empty() {
            return Ok(0);
        }
        let filled = |i: &usize| self.rows.iter().any(|row| !plain(&row[*i]).is_empty());
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(filled).collect();
        let all = shown.len();
        let text = loop {
            let (titles, rows) = self.for_people(&shown);
            let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
            let fits = |width| render::narrowest(&titles, &rows) <= width;
            if shown.len() <= 2 || width.is_none_or(fits) {
                break render::grid_within(width, &titles, &rows);
            }
            // The first columns say what a row is of, and those that weigh most come next.
            shown.pop();
        };
        writeln!(out, "{text}").map_err(Error::output)?;
        Ok(all - shown.len())
    }

    /// The titles and cells of these columns.
    fn for_people(&self, shown: &[usize]) -> (Vec<String>, Vec<Vec<String>>) {
        // Times since 1970 say nothing; those since the table's first do.
        let since_1970 = |i: usize| {
            let least = self.rows.iter().filter_map(|row| row[i].as_i64()).min();
            least.filter(|least| *least > SINCE_1970 && is_time(&self.columns[i]))
        };
        let first = shown.iter().filter_map(|i| since_1970(*i)).min();
        let firsts: Vec<Option<i64>> = shown.iter().map(|i| since_1970(*i).and(first)).collect();
        let titled = |(i, first): (&usize, &Option<i64>)| {
            let plain = title(&self.columns[*i]);
            if first.is_some() { format!("{plain} since first") } else { plain }
        };
        let titles: Vec<String> = shown.iter().zip(&firsts).map(titled).collect();
        let cells = |row: &Vec<Value>| {
            let cell = |(i, first): (&usize, &Option<i64>)| match (first, row[*i].as_i64()) {
                (Some(first), Some(time)) => render::nanos((time - first) as f64),
                _ => for_people(&self.columns[*i], &row[*i]),
            };
            shown.iter().zip(&firsts).map(cell).collect()
        };
        (titles, self.rows.iter().map(cells).collect())
    }

    /// A column of whole numbers is integers, of numbers floats, else text; nothing stays nothing.
    fn into_columns(self) -> Vec<TableColumn> {
        let column = |(i, name): (usize, &String)| {
            let values = || self.rows.iter().map(|row| &row[i]);
            let known = || values().filter(|value| !value.is_null());
            let values = if known().all(Value::is_i64) {
                ColumnValues::Integers(values().map(Value::as_i64).collect())
            } else if known().all(Value::is_u64) {
                ColumnValues::Unsigned(values().map(Value::as_u64).collect())
            } else if known().all(Value::is_number) {
                ColumnValues::Floats(values().map(Value::as_f64).collect())
            } else {
                let text = |value: &Value| (!value.is_null()).then(|| plain(value));
                ColumnValues::Text(values().map(text).collect())
            };
            TableColumn { name: name.clone(), values }
        };
        self.columns.iter().enumerate().map(column).collect()
    }
}

impl<'de> Deserialize<'de> for RowFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Visitor that keeps the fields of a row in the order in which they are serialized.
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = RowFields;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a flat row")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(RowFields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
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

/// Whether a column holds nanoseconds: `busy_ns`, `before_call_ns_max`.
fn is_time(column: &str) -> bool {
    column.ends_with("_ns") || column.contains("_ns_")
}

/// `exposed_communication_ns` as `exposed communication`, `idle_pct` as `idle %`.
fn title(column: &str) -> String {
    let plain = column.strip_suffix("_ns").unwrap_or(column).replace("_ns_", "_");
    let plain = plain.as_str();
    let plain = match plain.strip_suffix("_pct") {
        Some(share) => format!("{share} %"),
        None => plain.to_owned(),
    };
    plain.replace('_', " ")
}

fn for_people(column: &str, value: &Value) -> String {
    const WIDEST: usize = 60;
    let number = value.as_f64();
    match number {
        Some(nanos) if is_time(column) => render::nanos(nanos),
        Some(share) if column.ends_with("_pct") => format!("{share:.1}"),
        Some(bytes) if column.ends_with("bytes") && bytes >= 0.0 => {
            schema::Bytes(bytes as u64).to_string()
        }
        Some(_) if value.is_u64() => render::count(value.as_u64().unwrap_or_default()),
        // Three decimals of a large number would be digits that nobody measured.
        Some(number) if value.is_f64() && number >= 1e3 => render::count(number.round() as u64),
        Some(number) if value.is_f64() => format!("{number:.3}"),
        _ => {
            let text = plain(value);
            if text.is_empty() {
                return "-".to_owned();
            }
            // Whole characters: names of kernels may be any text.
            let cut = text.chars().count() > WIDEST;
            let kept: String = text.chars().take(WIDEST - 1).collect();
            if cut { format!("{kept}…") } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        rank: u32,
        name: &'static str,
        busy_ns: i64,
        idle_pct: Option<f64>,
    }

    fn written(write: impl FnOnce(&Sheet, &mut dyn Write) -> Result<(), Error>) -> String {
        let rows = [
            Row { rank: 1, name: "a, \"b\"|", busy_ns: 1_500, idle_pct: Some(49.25) },
            Row { rank: 0, name: "c", busy_ns: -3, idle_pct: None },
        ];
        let mut out = Vec::new();
        write(&Sheet::from_rows(&rows).unwrap(), &mut out).unwrap();
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

    /// On a narrow terminal texts are wrapped and the last columns left out; numbers stay whole.
    #[test]
    fn columns_that_do_not_fit_are_dropped_from_the_end() {
        #[derive(Serialize)]
        struct Wide {
            name: &'static str,
            busy_ns: i64,
            exposed_communication_ns: i64,
            idle_pct: f64,
        }
        let name = "void at::native::vectorized_elementwise_kernel, which is a long name";
        let row = || Wide { name, busy_ns: 1_500, exposed_communication_ns: 25, idle_pct: 4.0 };
        let sheet = Sheet::from_rows(&[row(), row()]).unwrap();
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
