//! A user's Parquet file to rows: booleans, integers, floats, text, and lists of them, with nulls.
//!
//! A category reads like the same value in text would: the integer 7 of a column of kind `string`
//! is hashed as `7`. A NaN is a missing value, as pandas writes it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, RecordBatch, StringArray};
use arrow_schema::{DataType, SchemaRef};
use schema::source::CategoryKind;

use crate::convert::{Row, category, refused, text_label};
use crate::error::Error;
use crate::field::Problem;
use crate::layout::{LabelNeed, Layout, Wanted};
use crate::text::Body;

/// Rows read at a time.
const BATCH_ROWS: usize = 8192;

/// Which of the wanted categorical columns hold lists in `path`.
pub(crate) fn lists(path: &Path, wanted: &Wanted) -> Result<Vec<bool>, Error> {
    let (_, metadata) = metadata(path)?;
    let is_list = |name: &str| match metadata.schema().field_with_name(name) {
        Ok(field) => matches!(field.data_type(), DataType::List(_)),
        Err(_) => false,
    };
    Ok(wanted
        .categorical
        .iter()
        .map(|column| column.separator.is_some() || is_list(&column.column))
        .collect())
}

/// Sends the rows of `path` in blocks. Stops when `send` says `false`.
pub(crate) fn send_rows(
    path: &Path,
    (wanted, need): (&Wanted, LabelNeed),
    bytes_done: &AtomicU64,
    send: &mut dyn FnMut(Arc<Layout>, Body) -> bool,
) -> Result<(), Error> {
    let (file, metadata) = metadata(path)?;
    let bytes = file.metadata().map_err(Error::open(path))?.len();
    if bytes == 0 {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    let names = names(metadata.schema());
    let whole = wanted.place(&names, path, need)?;
    let mut used: Vec<usize> = whole.dense.iter().chain(&whole.categorical).copied().collect();
    used.extend(whole.label);
    used.sort_unstable();
    used.dedup();
    check_types(metadata.schema(), &used, path)?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), used.iter().copied());
    let kept: Vec<String> = used.iter().map(|&index| names[index].clone()).collect();
    let layout = Arc::new(wanted.place(&kept, path, need)?);
    let total = metadata.metadata().file_metadata().num_rows().max(1).cast_unsigned();
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_projection(mask)
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(Error::parquet(path))?;
    let mut rows = 0;
    for batch in reader {
        let batch = batch.map_err(|error| Error::parquet(path)(error.into()))?;
        let first_row = rows;
        rows += batch.num_rows() as u64;
        let share = |rows: u64| (u128::from(bytes) * u128::from(rows) / u128::from(total)) as u64;
        bytes_done.fetch_add(share(rows) - share(first_row), Ordering::Relaxed);
        if !send(Arc::clone(&layout), Body::Table { first_row, batch }) {
            return Ok(());
        }
    }
    Ok(())
}

fn metadata(path: &Path) -> Result<(File, ArrowReaderMetadata), Error> {
    let file = File::open(path).map_err(Error::open(path))?;
    if file.metadata().map_err(Error::open(path))?.len() == 0 {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    // The writer's Arrow schema would bring back dictionaries and views; the plain types are
    // enough.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&file, options).map_err(Error::parquet(path))?;
    Ok((file, metadata))
}

fn names(schema: &SchemaRef) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

fn check_types(schema: &SchemaRef, used: &[usize], path: &Path) -> Result<(), Error> {
    for &index in used {
        let field = schema.field(index);
        let element = match field.data_type() {
            DataType::List(element) => element.data_type(),
            other => other,
        };
        if !is_readable(element) {
            return Err(Error::ColumnType {
                path: path.to_owned(),
                column: field.name().clone(),
                expected: "booleans, integers, floats, text or lists of them",
                got: field.data_type().to_string(),
            });
        }
    }
    Ok(())
}

fn is_readable(kind: &DataType) -> bool {
    kind.is_integer()
        || matches!(
            kind,
            DataType::Boolean
                | DataType::Float32
                | DataType::Float64
                | DataType::Utf8
                | DataType::Binary
        )
}

/// The wanted columns of a batch, ready to be read cell by cell.
pub(crate) struct Cells<'a> {
    label: Option<Column<'a>>,
    dense: Vec<Column<'a>>,
    categorical: Vec<Column<'a>>,
}

struct Column<'a> {
    array: &'a ArrayRef,
    data: Data<'a>,
}

enum Data<'a> {
    Booleans,
    /// Signed and unsigned integers; the latter by bit pattern.
    Integers(Vec<i64>),
    Unsigned(Vec<u64>),
    Floats(Vec<f64>),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    List(&'a ListArray, Box<Column<'a>>),
}

/// One cell that is not null.
#[derive(Clone, Copy)]
enum Cell<'a> {
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a [u8]),
}

impl<'a> Cells<'a> {
    pub(crate) fn of(batch: &'a RecordBatch, wanted: &Wanted, layout: &Layout) -> Self {
        debug_assert_eq!(wanted.dense.len(), layout.dense.len());
        let column = |index: &usize| Column::of(batch.column(*index));
        Self {
            label: layout.label.as_ref().map(column),
            dense: layout.dense.iter().map(column).collect(),
            categorical: layout.categorical.iter().map(column).collect(),
        }
    }
}

impl<'a> Column<'a> {
    fn of(array: &'a ArrayRef) -> Self {
        let array_type = array.data_type();
        macro_rules! values {
            ($kind:ty, $into:ty) => {
                array.as_primitive::<$kind>().values().iter().map(|&v| <$into>::from(v)).collect()
            };
        }
        let data = match array_type {
            DataType::Boolean => Data::Booleans,
            DataType::Int8 => Data::Integers(values!(Int8Type, i64)),
            DataType::Int16 => Data::Integers(values!(Int16Type, i64)),
            DataType::Int32 => Data::Integers(values!(Int32Type, i64)),
            DataType::Int64 => Data::Integers(values!(Int64Type, i64)),
            DataType::UInt8 => Data::Integers(values!(UInt8Type, i64)),
            DataType::UInt16 => Data::Integers(values!(UInt16Type, i64)),
            DataType::UInt32 => Data::Integers(values!(UInt32Type, i64)),
            DataType::UInt64 => Data::Unsigned(values!(UInt64Type, u64)),
            DataType::Float32 => Data::Floats(values!(Float32Type, f64)),
            DataType::Float64 => Data::Floats(values!(Float64Type, f64)),
            DataType::Binary => Data::Bytes(array.as_binary()),
            DataType::List(_) => {
                let list = array.as_list();
                Data::List(list, Box::new(Column::of(list.values())))
            }
            // `check_types` has let nothing else through.
            _ => Data::Text(array.as_string()),
        };
        Self { array, data }
    }

    fn cell(&self, row: usize) -> Option<Cell<'_>> {
        if self.array.is_null(row) {
            return None;
        }
        match &self.data {
            Data::Booleans => Some(Cell::Boolean(self.array.as_boolean().value(row))),
            Data::Integers(values) => Some(Cell::Integer(values[row])),
            Data::Unsigned(values) => Some(Cell::Unsigned(values[row])),
            Data::Floats(values) if values[row].is_nan() => None,
            Data::Floats(values) => Some(Cell::Float(values[row])),
            Data::Text(values) => Some(Cell::Text(values.value(row).as_bytes().trim_ascii())),
            Data::Bytes(values) => Some(Cell::Text(values.value(row).trim_ascii())),
            Data::List(..) => None,
        }
    }

    fn value(&self, row: usize, wanted: &Wanted) -> Option<Cell<'_>> {
        self.cell(row).filter(|cell| !matches!(cell, Cell::Text(text) if wanted.is_missing(text)))
    }
}

impl Cell<'_> {
    /// The value as text files show it.
    fn text(&self) -> Vec<u8> {
        match self {
            Self::Boolean(value) => value.to_string().into_bytes(),
            Self::Integer(value) => value.to_string().into_bytes(),
            Self::Unsigned(value) => value.to_string().into_bytes(),
            Self::Float(value) => value.to_string().into_bytes(),
            Self::Text(text) => text.to_vec(),
        }
    }

    fn number(&self) -> Result<f64, Problem> {
        match self {
            Self::Boolean(value) => Ok(f64::from(u8::from(*value))),
            Self::Integer(value) => Ok(*value as f64),
            Self::Unsigned(value) => Ok(*value as f64),
            Self::Float(value) if crate::field::is_storable(*value) => Ok(*value),
            Self::Float(_) => Err(Problem::Number),
            Self::Text(text) => crate::field::number(text),
        }
    }

    fn category(&self, kind: CategoryKind) -> Result<i64, Problem> {
        match (*self, kind) {
            (_, CategoryKind::String) => category(kind, &self.text()),
            (Self::Text(text), _) => category(kind, text),
            (Self::Boolean(value), _) => Ok(i64::from(value)),
            (Self::Integer(value), _) => Ok(value),
            (Self::Unsigned(value), _) => Ok(value.cast_signed()),
            // pandas turns integers with missing values into floats.
            (Self::Float(value), _) => {
                let whole = value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0;
                if whole { Ok(value as i64) } else { Err(Problem::Integer) }
            }
        }
    }
}

/// Reads row `index` of a batch.
pub(crate) fn read_row(
    row: &mut Row,
    wanted: &Wanted,
    cells: &Cells<'_>,
    index: usize,
) -> Result<(), String> {
    row.label = match &cells.label {
        Some(column) => label(wanted, column, index)?,
        None => f32::NAN,
    };
    for (column, cells) in wanted.dense.iter().zip(&cells.dense) {
        if matches!(cells.data, Data::List(..)) {
            return Err(format!("column {:?}: expected a number, got a list", column.column));
        }
        row.dense.push(match cells.value(index, wanted) {
            None => f64::NAN,
            Some(cell) => {
                cell.number().map_err(|problem| refused(&column.column, problem, &cell.text()))?
            }
        });
    }
    for (column, cells) in wanted.categorical.iter().zip(&cells.categorical) {
        let read = |cell: Cell<'_>| {
            cell.category(column.kind)
                .map_err(|problem| refused(&column.column, problem, &cell.text()))
        };
        if let Data::List(list, elements) = &cells.data {
            let offsets = list.value_offsets();
            let range = if list.is_null(index) { 0..0 } else { offsets[index]..offsets[index + 1] };
            for element in range {
                if let Some(cell) = elements.value(element as usize, wanted) {
                    row.categories.push(Some(read(cell)?));
                }
            }
        } else {
            row.categories.push(cells.value(index, wanted).map(read).transpose()?);
        }
        row.ends.push(row.categories.len());
    }
    Ok(())
}

fn label(wanted: &Wanted, column: &Column<'_>, index: usize) -> Result<f32, String> {
    match column.value(index, wanted) {
        Some(cell) if wanted.label.positive.is_empty() => {
            let name = &wanted.label.column;
            let value = cell.number().and_then(crate::field::label);
            value.map_err(|problem| refused(name, problem, &cell.text()))
        }
        Some(cell) => text_label(wanted, &cell.text()),
        None => text_label(wanted, b""),
    }
}
