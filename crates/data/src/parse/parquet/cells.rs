//! Converts the columns of a user's Parquet file to values: booleans, integers, decimals, floats,
//! times, text, and lists of them, with nulls.
//!
//! A category has the same value as in a text file: the integer 7 in a column of kind `string` is
//! hashed as `7`. NaN represents a missing value, as pandas writes it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch};
use arrow_buffer::i256;
use arrow_schema::{DataType, TimeUnit};
use schema::source::{CategoricalColumn, CategoryKind, DenseColumn, DenseTransform};

use crate::loss::RowRefusal;
use crate::parse::block::CellText;
use crate::parse::datetime;
use crate::parse::field::{self, FieldProblem};
use crate::parse::layout::{PlacedColumns, Rules, WantedColumns};
use crate::parse::parsed_columns::{ParsedCategories, ParsedColumns};
use crate::parse::parsed_row::is_large;
use crate::parse::text_record::{
    self, label_from_count, malformed_field, missing_label, parse_category, parse_label,
};

/// The value of a cell that is present.
#[derive(Clone, Copy)]
enum Cell<'a> {
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    /// A decimal number, given by its unscaled integer and its number of decimals.
    Decimal(i128, i8),
    /// A time, in seconds since 1970.
    Time(f64),
    Text(&'a [u8]),
}

/// Whether spaces around text are trimmed.
#[derive(Clone, Copy)]
enum Spaces {
    Trimmed,
    Kept,
}

impl Spaces {
    /// Chooses the treatment for a column. A text that is itself the category keeps its spaces,
    /// while spaces around numbers are meaningless.
    fn new(kind: CategoryKind, wanted: &WantedColumns) -> Self {
        match (kind, wanted.rules) {
            (CategoryKind::String, Rules::Second) => Self::Kept,
            _ => Self::Trimmed,
        }
    }
}

/// The first reason for refusal of each refused row, by the index of the row.
type RowProblems = BTreeMap<usize, RowRefusal>;

/// Parses the wanted columns of `batch`, whose first row has line number `first_line`.
pub(crate) fn parse_batch<'a>(
    batch: &'a RecordBatch,
    first_line: u64,
    PlacedColumns { wanted, layout }: PlacedColumns<'_>,
) -> ParsedColumns<'a> {
    let mut problems = RowProblems::new();
    let labels = match layout.label {
        Some(at) => parse_labels(batch.column(at), wanted, &mut problems),
        None => vec![f32::NAN; batch.num_rows()],
    };
    let dense = wanted.dense.iter().zip(&layout.dense);
    let dense =
        dense.map(|(column, &at)| parse_numbers(batch.column(at), column, wanted, &mut problems));
    let dense = dense.collect();
    let times = match (&wanted.time, layout.time) {
        (Some(time), Some(at)) => parse_numbers(batch.column(at), time, wanted, &mut problems),
        _ => Vec::new(),
    };
    let categorical = wanted.categorical.iter().zip(&layout.categorical);
    let categorical = categorical.map(|(column, &at)| {
        let array = batch.column(at);
        match array.as_list_opt() {
            Some(list) => parse_lists(list, column, wanted, &mut problems),
            None => parse_categories(array, column, wanted, &mut problems),
        }
    });
    let categorical = categorical.collect();
    let refused = problems.into_iter().collect();
    ParsedColumns { first_line, labels, times, dense, categorical, refused }
}

fn parse_labels(array: &ArrayRef, wanted: &WantedColumns, problems: &mut RowProblems) -> Vec<f32> {
    let mut labels = Vec::with_capacity(array.len());
    let mut text = Vec::new();
    for_each_cell(array, wanted, Spaces::Trimmed, |row, cell| {
        let label = match (cell, wanted.label.positive_from) {
            (Some(Cell::Text(text)), _) => parse_label(wanted, text),
            (Some(cell), None) if wanted.label.positive.is_empty() => {
                let read =
                    cell.number().map_err(|_| FieldProblem::Label).and_then(field::parse_label);
                read.map_err(|p| malformed_field(&wanted.label.column, p, cell.text(&mut text)))
            }
            (Some(cell), Some(least)) => {
                let count = cell.number().map(|count| label_from_count(count, least));
                count.map_err(|p| malformed_field(&wanted.label.column, p, cell.text(&mut text)))
            }
            (Some(cell), None) => parse_label(wanted, cell.text(&mut text)),
            (None, _) => missing_label(wanted),
        };
        labels.push(label.unwrap_or_else(|problem| record_problem(problems, row, problem)));
    });
    labels
}

fn parse_numbers(
    array: &ArrayRef,
    column: &DenseColumn,
    wanted: &WantedColumns,
    problems: &mut RowProblems,
) -> Vec<f64> {
    let name = &column.column;
    // Every row is refused, because no element of a list can stand for the number.
    if let DataType::List(_) = array.data_type() {
        for row in 0..array.len() {
            let problem = format!("column {name:?}: expected a number, got a list");
            problems.entry(row).or_insert(RowRefusal::Malformed(problem));
        }
        return vec![f64::NAN; array.len()];
    }
    let mut values = Vec::with_capacity(array.len());
    for_each_cell(array, wanted, Spaces::Trimmed, |row, cell| {
        values.push(match cell.map(|cell| (cell, cell.dense(column))) {
            None => f64::NAN,
            Some((_, Ok(value))) => value,
            Some((cell, Err(problem))) => record_problem(
                problems,
                row,
                malformed_field(name, problem, cell.text(&mut Vec::new())),
            ),
        });
    });
    values
}

/// Parses a categorical column without lists.
fn parse_categories<'a>(
    array: &'a ArrayRef,
    column: &CategoricalColumn,
    wanted: &WantedColumns,
    problems: &mut RowProblems,
) -> ParsedCategories<'a> {
    if let DataType::Int64 = array.data_type()
        && column.kind != CategoryKind::String
        && column.missing.is_none()
        && array.null_count() == 0
    {
        // Without missing values, 64-bit integers are used as they are, so they need no copy.
        let values = Cow::Borrowed(&array.as_primitive::<Int64Type>().values()[..]);
        return ParsedCategories { values, ..ParsedCategories::default() };
    }
    let (mut values, mut missing) = (Vec::with_capacity(array.len()), Vec::new());
    let (mut text, mut large) = (Vec::new(), Vec::new());
    for_each_cell(array, wanted, Spaces::new(column.kind, wanted), |row, cell| {
        values.push(match cell.map(|cell| (cell, cell.category(column, &mut text))) {
            None | Some((_, Ok(None))) => {
                missing.resize(array.len(), false);
                missing[row] = true;
                0
            }
            Some((cell, Ok(Some(value)))) => {
                if cell.is_large(value) {
                    large.push(row as u32);
                }
                value
            }
            Some((cell, Err(problem))) => record_problem(
                problems,
                row,
                malformed_field(&column.column, problem, cell.text(&mut text)),
            ),
        });
    });
    ParsedCategories { values: Cow::Owned(values), missing, ends: None, large }
}

/// Parses a column of lists. Missing elements are left out.
fn parse_lists(
    list: &ListArray,
    column: &CategoricalColumn,
    wanted: &WantedColumns,
    problems: &mut RowProblems,
) -> ParsedCategories<'static> {
    let offsets = list.value_offsets();
    let first = offsets[0] as usize;
    let elements = list.values().slice(first, offsets[list.len()] as usize - first);
    let mut values = Vec::with_capacity(elements.len());
    // The vector first holds the lengths of the lists, and then their ends.
    let mut ends = vec![0; list.len()];
    let (mut row, mut text, mut large) = (0, Vec::new(), Vec::new());
    for_each_cell(&elements, wanted, Spaces::new(column.kind, wanted), |element, cell| {
        while first + element >= offsets[row + 1] as usize {
            row += 1;
        }
        // A null list may still cover elements.
        let Some(cell) = cell.filter(|_| !list.is_null(row)) else { return };
        match cell.category(column, &mut text) {
            Ok(None) => {}
            Ok(Some(value)) => {
                if cell.is_large(value) {
                    large.push(values.len() as u32);
                }
                values.push(value);
                ends[row] += 1;
            }
            Err(problem) => {
                let problem = malformed_field(&column.column, problem, cell.text(&mut text));
                problems.entry(row).or_insert(problem);
            }
        }
    });
    let mut end = 0;
    for count in &mut ends {
        end += *count;
        *count = end;
    }
    ParsedCategories { values: Cow::Owned(values), missing: Vec::new(), ends: Some(ends), large }
}

/// Records the first problem of a row and returns a placeholder for its value.
#[cold]
fn record_problem<T: Default>(problems: &mut RowProblems, row: usize, problem: RowRefusal) -> T {
    problems.entry(row).or_insert(problem);
    T::default()
}

/// Calls `take` with each cell of a column, or with `None` if the cell is missing. Each type has
/// its own loop, so that the type is not matched for each cell.
#[inline(always)]
fn for_each_cell(
    array: &ArrayRef,
    wanted: &WantedColumns,
    spaces: Spaces,
    take: impl FnMut(usize, Option<Cell<'_>>),
) {
    // This is a macro, because a closure cannot be generic over the Arrow type.
    macro_rules! numbers {
        ($kind:ty, $cell:expr) => {{
            let values = array.as_primitive::<$kind>().values();
            visit_cells(array, |row| Some($cell(values[row].into())), take);
        }};
    }
    let float = |value: f64| (!value.is_nan()).then_some(Cell::Float(value));
    match array.data_type() {
        DataType::Int8 => numbers!(Int8Type, Cell::Integer),
        DataType::Int16 => numbers!(Int16Type, Cell::Integer),
        DataType::Int32 => numbers!(Int32Type, Cell::Integer),
        DataType::Int64 => numbers!(Int64Type, Cell::Integer),
        DataType::UInt8 => numbers!(UInt8Type, Cell::Integer),
        DataType::UInt16 => numbers!(UInt16Type, Cell::Integer),
        DataType::UInt32 => numbers!(UInt32Type, Cell::Integer),
        DataType::UInt64 => numbers!(UInt64Type, Cell::Unsigned),
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>().values();
            visit_cells(array, |row| float(f64::from(values[row])), take);
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>().values();
            visit_cells(array, |row| float(values[row]), take);
        }
        DataType::Boolean => {
            let values = array.as_boolean();
            visit_cells(array, |row| Some(Cell::Boolean(values.value(row))), take);
        }
        DataType::Binary => {
            let values = array.as_binary::<i32>();
            visit_cells(array, |row| text_cell(values.value(row), wanted, spaces), take);
        }
        DataType::Utf8 => {
            let values = array.as_string::<i32>();
            visit_cells(array, |row| text_cell(values.value(row).as_bytes(), wanted, spaces), take);
        }
        DataType::Date32 => {
            let days = array.as_primitive::<Date32Type>().values();
            visit_cells(array, |row| Some(Cell::Time(f64::from(days[row]) * 86_400.0)), take);
        }
        DataType::Timestamp(unit, _) => {
            let (stamps, per_second) = read_timestamps(array, *unit);
            visit_cells(array, |row| Some(Cell::Time(stamps[row] as f64 / per_second)), take);
        }
        DataType::Float16
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => for_each_number(array, take),
        DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => for_each_time(array, take),
        _ => for_each_text(array, wanted, spaces, take),
    }
}

/// Handles the rarer numeric types for [`for_each_cell`].
fn for_each_number(array: &ArrayRef, take: impl FnMut(usize, Option<Cell<'_>>)) {
    let float = |value: f64| (!value.is_nan()).then_some(Cell::Float(value));
    match array.data_type() {
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>().values();
            visit_cells(array, |row| float(values[row].to_f64()), take);
        }
        DataType::Decimal32(_, scale) => {
            let values = array.as_primitive::<Decimal32Type>().values();
            visit_cells(array, |row| Some(trim_decimal(values[row].into(), *scale)), take);
        }
        DataType::Decimal64(_, scale) => {
            let values = array.as_primitive::<Decimal64Type>().values();
            visit_cells(array, |row| Some(trim_decimal(values[row].into(), *scale)), take);
        }
        DataType::Decimal128(_, scale) => {
            let values = array.as_primitive::<Decimal128Type>().values();
            visit_cells(array, |row| Some(trim_decimal(values[row], *scale)), take);
        }
        DataType::Decimal256(_, scale) => {
            let values = array.as_primitive::<Decimal256Type>().values();
            let cell = |value: i256| match value.to_i128() {
                Some(value) => Some(trim_decimal(value, *scale)),
                // A decimal of more than 38 digits becomes the nearest float, which is precise
                // enough.
                None => float(value.to_string().parse::<f64>().ok()? / 10f64.powi((*scale).into())),
            };
            visit_cells(array, |row| cell(values[row]), take);
        }
        _ => visit_cells(array, |_| None, take),
    }
}

/// Handles the rarer types of times for [`for_each_cell`].
fn for_each_time(array: &ArrayRef, take: impl FnMut(usize, Option<Cell<'_>>)) {
    match array.data_type() {
        DataType::Date64 => {
            let values = array.as_primitive::<Date64Type>().values();
            visit_cells(array, |row| Some(Cell::Time(values[row] as f64 / 1e3)), take);
        }
        DataType::Time32(unit) => {
            let per_second = per_second(*unit);
            let value = |row: usize| match unit {
                TimeUnit::Second => array.as_primitive::<Time32SecondType>().value(row),
                _ => array.as_primitive::<Time32MillisecondType>().value(row),
            };
            visit_cells(array, |row| Some(Cell::Time(f64::from(value(row)) / per_second)), take);
        }
        DataType::Time64(unit) => {
            let per_second = per_second(*unit);
            let value = |row: usize| match unit {
                TimeUnit::Microsecond => array.as_primitive::<Time64MicrosecondType>().value(row),
                _ => array.as_primitive::<Time64NanosecondType>().value(row),
            };
            visit_cells(array, |row| Some(Cell::Time(value(row) as f64 / per_second)), take);
        }
        _ => visit_cells(array, |_| None, take),
    }
}

/// Handles the rarer types of text for [`for_each_cell`]. Apart from these types, only lists reach
/// this function, and lists have no cells of their own.
fn for_each_text(
    array: &ArrayRef,
    wanted: &WantedColumns,
    spaces: Spaces,
    take: impl FnMut(usize, Option<Cell<'_>>),
) {
    match array.data_type() {
        DataType::LargeBinary => {
            let values = array.as_binary::<i64>();
            visit_cells(array, |row| text_cell(values.value(row), wanted, spaces), take);
        }
        DataType::FixedSizeBinary(_) => {
            let values = array.as_fixed_size_binary();
            visit_cells(array, |row| text_cell(values.value(row), wanted, Spaces::Kept), take);
        }
        DataType::LargeUtf8 => {
            let values = array.as_string::<i64>();
            visit_cells(array, |row| text_cell(values.value(row).as_bytes(), wanted, spaces), take);
        }
        _ => visit_cells(array, |_| None, take),
    }
}

/// Returns the timestamps of a column and the number of their units per second.
fn read_timestamps(array: &ArrayRef, unit: TimeUnit) -> (&[i64], f64) {
    let values: &[i64] = match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
    };
    (values, per_second(unit))
}

fn per_second(unit: TimeUnit) -> f64 {
    match unit {
        TimeUnit::Second => 1.0,
        TimeUnit::Millisecond => 1e3,
        TimeUnit::Microsecond => 1e6,
        TimeUnit::Nanosecond => 1e9,
    }
}

/// Removes trailing zeros after the point, as text files show decimals.
fn trim_decimal(mut value: i128, mut scale: i8) -> Cell<'static> {
    while scale > 0 && value % 10 == 0 {
        (value, scale) = (value / 10, scale - 1);
    }
    while scale < 0 {
        (value, scale) = (value.saturating_mul(10), scale + 1);
    }
    match i64::try_from(value) {
        Ok(value) if scale == 0 => Cell::Integer(value),
        _ => Cell::Decimal(value, scale),
    }
}

/// Writes the decimal representation of a number.
fn write_decimal(text: &mut Vec<u8>, value: i128, scale: i8) -> std::io::Result<()> {
    let scale = usize::from(scale.unsigned_abs());
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let (sign, point) = (if value < 0 { "-" } else { "" }, if scale == 0 { "" } else { "." });
    write!(text, "{sign}{whole}{point}{fraction}")
}

/// Calls `take` with every cell of a column in its text form.
pub(crate) fn for_each_cell_text(
    array: &ArrayRef,
    wanted: &WantedColumns,
    take: &mut dyn FnMut(CellText<'_>),
) {
    let mut text = Vec::new();
    let Some(list) = array.as_list_opt::<i32>() else {
        for_each_cell(array, wanted, Spaces::Trimmed, |_, cell| match cell {
            None => take(CellText::Missing),
            // A text file would contain the time in ISO 8601.
            Some(Cell::Time(seconds)) => {
                take(CellText::Text(datetime::iso_text(seconds).as_bytes()));
            }
            Some(cell) => take(CellText::Text(cell.text(&mut text))),
        });
        return;
    };
    let mut whole = Vec::new();
    for row in 0..list.len() {
        whole.clear();
        if !list.is_null(row) {
            for_each_cell(&list.value(row), wanted, Spaces::Trimmed, |_, cell| {
                if let Some(cell) = cell {
                    let element = cell.text(&mut text);
                    take(CellText::Element(element));
                    whole.extend_from_slice(element);
                    whole.push(b'|');
                }
            });
        }
        take(if whole.is_empty() { CellText::Missing } else { CellText::List(&whole) });
    }
}

#[inline]
fn text_cell<'a>(text: &'a [u8], wanted: &WantedColumns, spaces: Spaces) -> Option<Cell<'a>> {
    let text = match spaces {
        Spaces::Trimmed => field::trim(text),
        Spaces::Kept => text,
    };
    (!wanted.is_missing(text)).then_some(Cell::Text(text))
}

#[inline(always)]
fn visit_cells<'a>(
    array: &ArrayRef,
    cell: impl Fn(usize) -> Option<Cell<'a>>,
    mut take: impl FnMut(usize, Option<Cell<'a>>),
) {
    match array.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => (0..array.len()).for_each(|row| take(row, cell(row))),
        Some(nulls) => {
            for row in 0..array.len() {
                take(row, if nulls.is_valid(row) { cell(row) } else { None });
            }
        }
    }
}

impl<'a> Cell<'a> {
    /// Formats the value as text files show it, using `text` as a buffer.
    fn text<'t>(&self, text: &'t mut Vec<u8>) -> &'t [u8]
    where
        'a: 't,
    {
        text.clear();
        // Writing to memory cannot fail.
        let _ = match self {
            Self::Text(text) => return text,
            Self::Boolean(value) => write!(text, "{value}"),
            Self::Integer(value) => write!(text, "{value}"),
            Self::Unsigned(value) => write!(text, "{value}"),
            Self::Float(value) | Self::Time(value) => write!(text, "{value}"),
            Self::Decimal(value, scale) => write_decimal(text, *value, *scale),
        };
        text
    }

    /// Returns the value for a dense column, before its transform.
    #[inline(always)]
    fn dense(&self, column: &DenseColumn) -> Result<f64, FieldProblem> {
        match self {
            Self::Text(text) => text_record::parse_dense(column, text),
            _ if column.transform == DenseTransform::One => Ok(1.0),
            // Parquet's timestamps are converted to seconds already; other numbers may have any
            // unit.
            Self::Time(seconds) => Ok(*seconds),
            _ if column.transform != DenseTransform::Datetime => self.number(),
            _ if column.date_format.is_some() => {
                text_record::parse_dense(column, self.text(&mut Vec::new()))
            }
            _ => self.number().map(datetime::since_epoch),
        }
    }

    #[inline(always)]
    fn number(&self) -> Result<f64, FieldProblem> {
        match self {
            Self::Boolean(value) => Ok(f64::from(u8::from(*value))),
            Self::Integer(value) => Ok(*value as f64),
            Self::Unsigned(value) => Ok(*value as f64),
            Self::Float(value) if field::is_storable(*value) => Ok(*value),
            Self::Float(_) => Err(FieldProblem::Number),
            Self::Time(seconds) => Ok(*seconds),
            Self::Decimal(value, scale) => {
                // The unscaled number and the power of ten are exact for up to 15 digits, so the
                // quotient is the nearest number.
                Ok(*value as f64 / 10f64.powi((*scale).into()))
            }
            Self::Text(text) => field::number_or_nan(text),
        }
    }

    /// Returns the raw category; `None` if the cell represents a missing value.
    #[inline(always)]
    fn category(
        &self,
        column: &CategoricalColumn,
        text: &mut Vec<u8>,
    ) -> Result<Option<i64>, FieldProblem> {
        let value = match (*self, column.kind) {
            (_, CategoryKind::String) => return parse_category(column, self.text(text)),
            (Self::Text(text), _) => return parse_category(column, text),
            (Self::Decimal(..), _) => return parse_category(column, self.text(text)),
            (Self::Boolean(value), _) => i64::from(value),
            (Self::Integer(value), _) => value,
            (Self::Unsigned(value), _) => value.cast_signed(),
            // pandas turns integers with missing values into floats.
            (Self::Float(value) | Self::Time(value), _) => field::whole_number(value)?,
        };
        Ok((column.missing != Some(value) || self.is_large(value)).then_some(value))
    }

    /// Whether `value` is the bit pattern of this number, an unsigned id from 2^63 on.
    #[inline(always)]
    fn is_large(&self, value: i64) -> bool {
        match self {
            Self::Text(text) => is_large(value, text),
            Self::Unsigned(_) => value < 0,
            Self::Decimal(digits, _) => value < 0 && *digits > 0,
            Self::Boolean(_) | Self::Integer(_) | Self::Float(_) | Self::Time(_) => false,
        }
    }
}
