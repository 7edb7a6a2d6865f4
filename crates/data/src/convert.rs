//! One block of an input to rows: reads fields, skips and counts malformed records.
//!
//! Generic over what becomes of a row ([`Accept`]): fitting and writing share every line of
//! reading.

use schema::source::{CategoricalColumn, CategoryKind};

use crate::criteo_tsv::{self, Columns, Form, Found};
use crate::error::Error;
use crate::field::{self, Problem};
use crate::given::Given;
use crate::ids;
use crate::layout::{Layout, Wanted};
use crate::limit::Far;
use crate::loss::Losses;
use crate::npy;
use crate::parquet::cells;
use crate::text::{self, Block, Body, Place};

/// One record, read but not yet transformed. Reused from record to record.
#[derive(Default)]
pub(crate) struct Row {
    pub line: u64,
    /// NaN in a file without labels.
    pub label: f32,
    /// The time that parts training from held-out rows; NaN where missing or not asked for.
    pub time: f64,
    /// NaN where missing.
    pub dense: Vec<f64>,
    /// Categories of all columns one after the other, `None` where missing.
    pub categories: Vec<Option<i64>>,
    /// End of each column's categories.
    pub ends: Vec<usize>,
    /// The column of each category that is the bit pattern of an id from 2^63 on: hardly ever any.
    pub large: Vec<usize>,
}

impl Row {
    /// Forgets the values of the previous record.
    pub(crate) fn clear(&mut self) {
        self.time = f64::NAN;
        self.dense.clear();
        self.categories.clear();
        self.ends.clear();
        self.large.clear();
    }

    /// Adds a category of column `column`, written as `text`.
    #[inline]
    fn push_category(&mut self, column: usize, value: i64, text: &[u8]) {
        if is_large(value, text) {
            self.large.push(column);
        }
        self.categories.push(Some(value));
    }

    /// The categories of one column.
    #[inline]
    pub(crate) fn column(&self, column: usize) -> &[Option<i64>] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.categories[start..self.ends[column]]
    }
}

/// Whether `value` is the bit pattern of the unsigned number `text`.
#[inline]
pub(crate) fn is_large(value: i64, text: &[u8]) -> bool {
    value < 0 && text.first() != Some(&b'-')
}

/// Takes the rows of a block.
pub(crate) trait Accept: Send {
    /// Takes one row, or says why it cannot be taken; a refused row leaves nothing behind.
    fn accept(&mut self, row: &Row) -> Result<(), String>;

    /// Takes rows in columns, none of which is to be left out; `false`, and nothing taken, where
    /// they have to be looked at one by one.
    fn accept_given(&mut self, _: &Given<'_>) -> bool {
        false
    }

    /// Takes rows of Criteo's layout: none is refused, for every column has one value. `columns`
    /// may be left with anything in it.
    fn accept_columns(&mut self, columns: &mut Columns) {
        let mut row = Row::default();
        for index in 0..columns.len() {
            columns.read(index, &mut row);
            let taken = self.accept(&row);
            debug_assert_eq!(taken, Ok(()));
        }
    }
}

/// A converted block.
pub(crate) struct Parsed<A> {
    /// Index of the input.
    pub file: usize,
    /// Where the block starts in it, if reading can start there again.
    pub start: Option<Place>,
    /// How far reading had come at its end.
    pub far: Far,
    /// What took the rows.
    pub taken: A,
    /// Rows taken.
    pub rows: u64,
    /// Records skipped.
    pub losses: Losses,
    /// The first row that no rule allows to be skipped.
    pub refused: Option<Error>,
}

/// Converts `block`, giving each row to `taken`.
pub(crate) fn convert<A: Accept>(block: &Block, wanted: &Wanted, taken: A) -> Parsed<A> {
    let losses = Losses::default();
    let start = match &block.body {
        Body::Lines { start, .. } => Some(*start),
        _ => None,
    };
    let mut block_out = Output {
        name: &block.name,
        wanted,
        row: Row::default(),
        parsed: Parsed {
            file: block.file,
            start,
            far: block.far,
            taken,
            rows: 0,
            losses,
            refused: None,
        },
    };
    match &block.body {
        Body::Lines { start, text } => match Form::of(wanted, &block.layout) {
            Some(form) => block_out.criteo((text, start.line), form, (wanted, &block.layout)),
            None => block_out.lines((text, start.line), (wanted, &block.layout)),
        },
        Body::Records(records) => records.for_each(|line, text, fields| {
            block_out.take(line, |row| read_fields(row, (wanted, &block.layout), text, fields));
        }),
        Body::Arrays(rows) => {
            for index in 0..rows.len() {
                let line = rows.first_row + index as u64 + 1;
                let columns = (wanted, &*block.layout);
                block_out.take(line, |row| npy::read_row(row, columns, rows, index));
            }
        }
        Body::Table { first_row, batch } => {
            block_out.take_given(cells::read((batch, first_row + 1), wanted, &block.layout));
        }
    }
    block_out.parsed
}

struct Output<'a, A> {
    name: &'a str,
    wanted: &'a Wanted,
    row: Row,
    parsed: Parsed<A>,
}

impl<A: Accept> Output<'_, A> {
    fn lines(&mut self, (text, first_line): (&[u8], u64), columns: (&Wanted, &Layout)) {
        text::for_each_line(text, first_line, |line, text, fields| {
            self.take(line, |row| read_fields(row, columns, text, fields));
        });
    }

    /// Lines of Criteo's layout: the usual ones in columns, the others like any text.
    fn criteo(&mut self, (text, first_line): (&[u8], u64), form: Form, wanted: (&Wanted, &Layout)) {
        // A published line has some 250 bytes.
        let mut columns = Columns::with_room(text.len() / 200);
        criteo_tsv::parse((text, first_line), form, &mut columns, |columns, found| {
            self.take_columns(columns);
            if let Found::Unusual(line, text) = found {
                self.lines((text, line), wanted);
            }
        });
    }

    fn take_columns(&mut self, columns: &mut Columns) {
        self.parsed.rows += columns.len() as u64;
        self.parsed.taken.accept_columns(columns);
        columns.clear();
    }

    /// Rows in columns: all at once where none is to be left out, which is nearly always.
    fn take_given(&mut self, given: Given<'_>) {
        let (counts, counted) = (&mut self.parsed.losses.ids, &self.wanted.counted);
        if given.refused.is_empty()
            && self.wanted.time.is_none()
            && ids::count_given(counts, &given.categorical, counted)
            && self.parsed.taken.accept_given(&given)
        {
            self.parsed.rows += given.len() as u64;
            return;
        }
        self.parsed.losses.ids.clear();
        let mut refused = given.refused.iter().peekable();
        for index in 0..given.len() {
            let problem = refused.next_if(|(row, _)| *row == index);
            self.take(given.first_line + index as u64, |row| match problem {
                Some((_, problem)) => Err(problem.clone()),
                None => {
                    given.read(index, row);
                    Ok(())
                }
            });
        }
    }

    #[inline]
    fn take(&mut self, line: u64, read: impl FnOnce(&mut Row) -> Result<(), String>) {
        self.row.clear();
        self.row.line = line;
        let read = read(&mut self.row);
        let counted = &self.wanted.counted;
        if read.is_ok()
            && let Some(refused) = ids::refused(&self.row, counted)
        {
            self.refuse(refused);
            return;
        }
        match read.and_then(|()| self.parsed.taken.accept(&self.row)) {
            Ok(()) => {
                self.parsed.rows += 1;
                ids::count_row(&mut self.parsed.losses.ids, &self.row, counted);
            }
            Err(reason) => self.parsed.losses.count((self.name, line), reason),
        }
    }
}

impl<A> Output<'_, A> {
    #[cold]
    fn refuse(&mut self, (column, id, rows): (usize, i64, u64)) {
        let place = format!("{}:{}", self.name, self.row.line);
        let column = self.wanted.categorical[column].column.clone();
        self.parsed.refused.get_or_insert(Error::IdOutOfRange { place, column, id, rows });
    }
}

/// Reads one text record whose field `i` is `text[fields[i-1].end .. fields[i].end]`, given as
/// ranges.
fn read_fields(
    row: &mut Row,
    (wanted, layout): (&Wanted, &Layout),
    text: &[u8],
    fields: &[(u32, u32)],
) -> Result<(), String> {
    if fields.len() != layout.fields {
        return Err(format!("expected {} fields, got {}", layout.fields, fields.len()));
    }
    let field = |index: usize| {
        let (start, end) = fields[index];
        field::trim(&text[start as usize..end as usize])
    };
    row.label = match layout.label {
        Some(index) => text_label(wanted, field(index))?,
        None => f32::NAN,
    };
    for (column, &index) in wanted.dense.iter().zip(&layout.dense) {
        let text = field(index);
        row.dense.push(if wanted.is_missing(text) {
            f64::NAN
        } else {
            field::dense(column, text).map_err(|problem| refused(&column.column, problem, text))?
        });
    }
    if let (Some(time), Some(index)) = (&wanted.time, layout.time) {
        let text = field(index);
        if !wanted.is_missing(text) {
            let refuse = |problem| refused(&time.column, problem, text);
            row.time = field::dense(time, text).map_err(refuse)?;
        }
    }
    let columns = wanted.categorical.iter().zip(&layout.categorical).enumerate();
    for (at, (column, &index)) in columns {
        let text = field(index);
        let refuse = |problem, text: &[u8]| refused(&column.column, problem, text);
        match &column.separator {
            None if wanted.is_missing(text) => row.categories.push(None),
            None => match category(column, text).map_err(|p| refuse(p, text))? {
                Some(value) => row.push_category(at, value, text),
                None => row.categories.push(None),
            },
            Some(separator) => {
                for part in split(text, separator.as_bytes()).map(field::trim) {
                    if wanted.is_missing(part) {
                        continue;
                    }
                    if let Some(value) = category(column, part).map_err(|p| refuse(p, part))? {
                        row.push_category(at, value, part);
                    }
                }
            }
        }
        row.ends.push(row.categories.len());
    }
    Ok(())
}

/// The label of a trimmed field: 1 for a positive value, or a number.
pub(crate) fn text_label(wanted: &Wanted, text: &[u8]) -> Result<f32, String> {
    let name = &wanted.label.column;
    let is_number = wanted.label.positive.is_empty();
    if wanted.is_missing(text) || is_number && field::is_no_number(text) {
        return Err(format!("column {name:?}: the label is missing"));
    }
    if !is_number {
        let positive = wanted.label.positive.iter().any(|value| value.trim().as_bytes() == text);
        return Ok(if positive { 1.0 } else { 0.0 });
    }
    let value = field::number(text).map_err(|_| Problem::Label).and_then(field::label);
    value.map_err(|problem| refused(name, problem, text))
}

/// The raw category of a trimmed field that is neither empty nor the mark of a missing value;
/// `None` where it is a missing number all the same.
#[inline]
pub(crate) fn category(column: &CategoricalColumn, text: &[u8]) -> Result<Option<i64>, Problem> {
    let read = match column.kind {
        CategoryKind::String => return Ok(Some(field::hash(text))),
        CategoryKind::Integer => field::integer(text),
        CategoryKind::Hex => field::hex(text),
    };
    match read {
        Ok(value) if column.missing == Some(value) && !is_large(value, text) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) if field::is_no_number(text) => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// The reason a field was refused, with the field shortened to what a line can show.
pub(crate) fn refused(column: &str, problem: Problem, text: &[u8]) -> String {
    const SHOWN: usize = 40;
    let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
    let more = if text.len() > SHOWN { "…" } else { "" };
    format!("column {column:?}: expected {}, got {shown:?}{more}", problem.expected())
}

fn split<'a>(text: &'a [u8], separator: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = text.windows(separator.len()).position(|window| window == separator);
        rest = at.map(|at| &text[at + separator.len()..]);
        Some(&text[..at.unwrap_or(text.len())])
    })
}
