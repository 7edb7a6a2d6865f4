//! Parses one record of text into a row, independent of the delimiter.

use schema::source::{CategoricalColumn, CategoryKind, DenseColumn, DenseTransform, Unlabeled};

use crate::loss::RowRefusal;
use crate::parse::datetime;
use crate::parse::field::{self, FieldProblem};
use crate::parse::layout::{PlacedColumns, TextRecord, UnlabeledRows, WantedColumns};
use crate::parse::number_form;
use crate::parse::parsed_row::{ParsedRow, is_large};

/// Reads the wanted fields of one record into `row`.
///
/// # Errors
/// Returns the reason why the record is refused: a wrong number of fields, an invalid value, or a
/// missing label.
pub(crate) fn parse_record(
    row: &mut ParsedRow,
    PlacedColumns { wanted, layout }: PlacedColumns<'_>,
    record: TextRecord<'_>,
) -> Result<(), RowRefusal> {
    layout.check(record)?;
    let field = |index: usize| layout.field(record, index);
    row.label = match layout.label {
        Some(index) => parse_label(wanted, field(index))?,
        None => f32::NAN,
    };
    for (column, &index) in wanted.dense.iter().zip(&layout.dense) {
        let text = field(index);
        row.dense.push(if wanted.is_missing(text) {
            f64::NAN
        } else {
            parse_dense(column, text)
                .map_err(|problem| malformed_field(&column.column, problem, text))?
        });
    }
    if let (Some(time), Some(index)) = (&wanted.time, layout.time) {
        let text = field(index);
        if !wanted.is_missing(text) {
            let refuse = |problem| malformed_field(&time.column, problem, text);
            row.time = parse_dense(time, text).map_err(refuse)?;
        }
    }
    let columns = wanted.categorical.iter().zip(&layout.categorical).enumerate();
    for (at, (column, &index)) in columns {
        let text = field(index);
        let refuse = |problem, text: &[u8]| malformed_field(&column.column, problem, text);
        match &column.separator {
            None if wanted.is_missing(text) => row.categories.push(None),
            None => match parse_category(column, text).map_err(|p| refuse(p, text))? {
                Some(value) => row.push_category(at, value, text),
                None => row.categories.push(None),
            },
            Some(separator) => {
                // Missing elements are left out, so an empty field is an empty list.
                for part in split_list(text, separator.as_bytes()).map(field::trim) {
                    if wanted.is_missing(part) {
                        continue;
                    }
                    if let Some(value) =
                        parse_category(column, part).map_err(|p| refuse(p, part))?
                    {
                        row.push_category(at, value, part);
                    }
                }
            }
        }
        row.ends.push(row.categories.len());
    }
    Ok(())
}

/// Parses a label as the configuration specifies: by positive values, by a count, or as a number.
pub(crate) fn parse_label(wanted: &WantedColumns, text: &[u8]) -> Result<f32, RowRefusal> {
    let label = &wanted.label;
    // With positive values, the label is a text, which may be `NaN` or `null`.
    if wanted.is_missing(text) || label.positive.is_empty() && field::is_nan_text(text) {
        return missing_label(wanted);
    }
    if let Some(least) = label.positive_from {
        let count = field::parse_number(text)
            .map_err(|_| malformed_field(&label.column, FieldProblem::Number, text));
        return Ok(label_from_count(count?, least));
    }
    if !label.positive.is_empty() {
        let positive = label.positive.iter().any(|value| value.trim().as_bytes() == text);
        return Ok(if positive { 1.0 } else { 0.0 });
    }
    let value =
        field::parse_number(text).map_err(|_| FieldProblem::Label).and_then(field::parse_label);
    value.map_err(|problem| malformed_field(&label.column, problem, text))
}

/// Converts a count to a label: 1 from `least` on.
pub(crate) fn label_from_count(count: f64, least: i64) -> f32 {
    if count >= least as f64 { 1.0 } else { 0.0 }
}

/// Applies the configured treatment of rows without a label.
#[cold]
pub(crate) fn missing_label(wanted: &WantedColumns) -> Result<f32, RowRefusal> {
    match (wanted.unlabeled_rows, wanted.label.unlabeled) {
        (UnlabeledRows::Kept, _) => Ok(f32::NAN),
        (UnlabeledRows::AsConfigured, Unlabeled::LeaveOut) => Err(RowRefusal::Unlabeled),
        (UnlabeledRows::AsConfigured, Unlabeled::Malformed) => {
            let name = &wanted.label.column;
            Err(RowRefusal::Malformed(format!("column {name:?}: the label is missing")))
        }
    }
}

/// Parses the raw category of a trimmed field that is not empty. Returns `None` if the field is a
/// missing number.
#[inline]
pub(crate) fn parse_category(
    column: &CategoricalColumn,
    text: &[u8],
) -> Result<Option<i64>, FieldProblem> {
    let read = match column.kind {
        CategoryKind::String => return Ok(Some(field::hash_text(text))),
        CategoryKind::Integer => field::parse_integer(text),
        CategoryKind::Hex => field::parse_hex(text),
    };
    match read {
        Ok(value) if column.missing == Some(value) && !is_large(value, text) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) if field::is_nan_text(text) => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Builds the reason for refusing a field, which is shortened to fit a line.
#[cold]
pub(crate) fn malformed_field(column: &str, problem: FieldProblem, text: &[u8]) -> RowRefusal {
    const SHOWN: usize = 40;
    let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
    let more = if text.len() > SHOWN { "…" } else { "" };
    let expected = problem.expected();
    RowRefusal::Malformed(format!("column {column:?}: expected {expected}, got {shown:?}{more}"))
}

fn split_list<'a>(text: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = text.windows(separator.len()).position(|window| window == separator);
        rest = at.map(|at| &text[at + separator.len()..]);
        Some(&text[..at.unwrap_or(text.len())])
    })
}

/// Parses the value of a trimmed dense field, before its transform. `NaN` and `null` become NaN.
#[inline]
pub(crate) fn parse_dense(column: &DenseColumn, text: &[u8]) -> Result<f64, FieldProblem> {
    match column.transform {
        DenseTransform::One => Ok(1.0),
        DenseTransform::Datetime if field::is_nan_text(text) => Ok(f64::NAN),
        DenseTransform::Datetime => datetime::parse_time(text, column.date_format.as_deref()),
        _ => number_form::parse_amount(column.number, text),
    }
}
