//! Parses lines in Criteo's layout directly into columns of 32-bit integers.
//!
//! The parser accepts only lines whose fields all have the usual form (see `number`). All other
//! lines are left to the caller, so that `text_record` alone decides what is malformed.

use schema::source::{CategoryKind, DenseTransform, NumberForm};

use super::number::{DIGITS_MOST, decimal, digits, hex};
use super::separators::{Separators, TABS_MOST};
use super::{CATEGORICAL, DENSE};
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::PlacedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;

impl IntegerColumns {
    fn push(&mut self, line: u64, fields: &LineFields) {
        self.labels.push(fields.label);
        self.lines.push(line);
        self.missing.push(fields.missing);
        for (column, value) in self.dense.iter_mut().zip(fields.dense) {
            column.push(value);
        }
        for (column, value) in self.categories.iter_mut().zip(fields.categories) {
            column.push(value);
        }
    }
}

impl RowSink for IntegerColumns {
    /// Accepts a row whose values fit into 32 bits.
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        let mut fields = LineFields { label: row.label, ..LineFields::default() };
        for (column, &value) in row.dense.iter().enumerate() {
            if value.is_nan() {
                fields.missing |= 1 << column;
            } else if value == f64::from(value as i32) {
                fields.dense[column] = value as i32;
            } else {
                return Err(format!("column I{}: expected 32 bits, got {value}", column + 1));
            }
        }
        for (column, value) in row.categories.iter().enumerate() {
            match value.map(u32::try_from) {
                None => fields.missing |= 1 << (DENSE + column),
                Some(Ok(value)) => fields.categories[column] = value,
                Some(Err(_)) => {
                    let problem = "expected 8 hexadecimal digits at most, got more";
                    return Err(format!("column C{}: {problem}", column + 1));
                }
            }
        }
        self.push(row.line, &fields);
        Ok(())
    }

    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        if self.is_empty() {
            std::mem::swap(self, columns);
            return;
        }
        self.labels.append(&mut columns.labels);
        self.missing.append(&mut columns.missing);
        self.lines.append(&mut columns.lines);
        self.dense.iter_mut().zip(&mut columns.dense).for_each(|(a, b)| a.append(b));
        self.categories.iter_mut().zip(&mut columns.categories).for_each(|(a, b)| a.append(b));
    }
}

/// The parsed fields of one line.
#[derive(Default)]
struct LineFields {
    label: f32,
    dense: [i32; DENSE],
    categories: [u32; CATEGORICAL],
    missing: u64,
}

/// Variant of Criteo's layout: with or without the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineForm {
    Labeled,
    Unlabeled,
}

impl LineForm {
    /// Returns the variant of a file if it has Criteo's layout and its columns need no further
    /// interpretation.
    pub(crate) fn recognize(PlacedColumns { wanted, layout }: PlacedColumns<'_>) -> Option<Self> {
        let form = if layout.label.is_some() { Self::Labeled } else { Self::Unlabeled };
        let first = form.labels();
        let plain = wanted.missing.is_none()
            && wanted.time.is_none()
            && wanted.dense.iter().all(|c| c.transform != DenseTransform::Datetime)
            && wanted.dense.iter().all(|c| c.number == NumberForm::Plain)
            && wanted.label.is_number()
            && wanted.categorical.iter().all(|c| c.kind == CategoryKind::Hex)
            // Columns whose ids are counted or may be placeholders need the general parser.
            && wanted.categorical.iter().all(|c| (c.out_of_range, c.missing) == (None, None))
            && wanted.categorical.iter().all(|c| c.separator.is_none());
        let in_order = layout.fields == first + DENSE + CATEGORICAL
            && layout.label.is_none_or(|label| label == 0)
            && layout.dense.iter().copied().eq(first..first + DENSE)
            && layout.categorical.iter().copied().eq(first + DENSE..layout.fields);
        (plain && in_order).then_some(form)
    }

    fn labels(self) -> usize {
        match self {
            Self::Labeled => 1,
            Self::Unlabeled => 0,
        }
    }
}

/// A section of a text, reported in the order of the text.
pub(crate) enum TextItem<'t> {
    /// Rows that were parsed since the last unusual line.
    Usual,
    /// A line for the general parser: its number, and its text with the line end.
    Unusual(u64, &'t [u8]),
}

/// Parses the lines of `text` into `columns`. Calls `take` for each unusual line, when `columns`
/// holds the rows before it, and once at the end.
///
/// # Cost
/// The parser makes one pass, with 0.5 cycles per byte to find the fields and 30 instructions per
/// field. No branch depends on the content of a field, so none is mispredicted.
pub(crate) fn parse(
    text: &[u8],
    first_line: u64,
    form: LineForm,
    columns: &mut IntegerColumns,
    mut take: impl FnMut(&mut IntegerColumns, TextItem<'_>),
) {
    let count = form.labels() + DENSE + CATEGORICAL;
    let mut separators = Separators::new(text);
    let mut ends = [0; TABS_MOST];
    let (mut line, mut start) = (first_line, 0);
    while start < text.len() {
        let (tabs, end) = separators.next_line(&mut ends);
        let fields = if tabs + 1 == count && end < text.len() {
            // Files that were written on Windows end their lines with `\r\n`.
            let is_return = end > start && text[end - 1] == b'\r';
            ends[tabs] = end - usize::from(is_return);
            read(text, start, form, &ends)
        } else {
            None
        };
        let next = (end + 1).min(text.len());
        match fields {
            Some(fields) => columns.push(line, &fields),
            None => take(columns, TextItem::Unusual(line, &text[start..next])),
        }
        (line, start) = (line + 1, next);
    }
    take(columns, TextItem::Usual);
}

/// Parses the line that begins at `start` and whose fields end at `ends`; `None` if a field is
/// unusual.
#[inline(always)]
fn read(text: &[u8], mut start: usize, form: LineForm, ends: &[usize]) -> Option<LineFields> {
    let mut fields = LineFields { label: f32::NAN, ..LineFields::default() };
    let (labels, ends) = ends.split_at(form.labels());
    if let [end] = labels {
        fields.label = match text.get(start..*end)? {
            b"0" => 0.0,
            b"1" => 1.0,
            _ => return None,
        };
        start = end + 1;
    }
    let (mut is_long, mut wrong) = (false, 0);
    for (column, (value, &end)) in fields.dense.iter_mut().zip(ends).enumerate() {
        let negative = text.get(start) == Some(&b'-');
        let length = end - start - usize::from(negative);
        fields.missing |= u64::from(end == start) << column;
        is_long |= length > DIGITS_MOST || length == 0 && negative;
        let (number, problem) = decimal(digits(text, end, length));
        *value = if negative { -number } else { number };
        wrong |= problem;
        start = end + 1;
    }
    let mut words = [0; CATEGORICAL];
    for (column, (word, &end)) in words.iter_mut().zip(&ends[DENSE..]).enumerate() {
        // In a line that ends in a lone "\r", the last field ends before it starts.
        let length = end.saturating_sub(start);
        fields.missing |= u64::from(length == 0) << (DENSE + column);
        is_long |= length > DIGITS_MOST;
        *word = digits(text, end, length);
        start = end + 1;
    }
    for (value, word) in fields.categories.iter_mut().zip(words) {
        let (number, problem) = hex(word);
        *value = number;
        wrong |= problem;
    }
    (wrong == 0 && !is_long).then_some(fields)
}
