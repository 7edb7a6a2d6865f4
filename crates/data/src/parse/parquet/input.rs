//! Reads the wanted columns of a user's Parquet file in batches. The module `cells` interprets the
//! values of the columns.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use ::parquet::basic::Compression;
use ::parquet::file::metadata::ParquetMetaData;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::error::Error;
use crate::input::origin::ReadObserver;
use crate::input::remote::is_remote;
use crate::parse::block::{CellText, RecordSink, Records};
use crate::parse::layout::{PlacedColumns, WantedColumns};
use crate::parse::parquet::cells;
use crate::parse::parquet::remote::Remote;
use crate::parse::reader::{FormatReader, InputColumns, InputReading, SendBlock};

const BATCH_ROWS: usize = 8192;

/// The reader of users' Parquet files.
pub(crate) struct ParquetReader;

impl FormatReader for ParquetReader {
    fn has_magic(&self, start: &[u8]) -> bool {
        start.starts_with(b"PAR1")
    }

    fn columns(&self, input: &str) -> Result<Option<InputColumns>, Error> {
        columns(Path::new(input)).map(Some)
    }

    fn reads_streams(&self) -> bool {
        false
    }

    fn lists(&self, wanted: &WantedColumns, first: Option<&str>) -> Result<Vec<bool>, Error> {
        first.map_or_else(|| Ok(wanted.separated()), |first| lists(Path::new(first), wanted))
    }

    fn send(
        &self,
        input: &str,
        reading: &InputReading<'_>,
        send: &mut SendBlock<'_>,
    ) -> Result<(), Error> {
        send_rows(Path::new(input), reading, send)
    }
}

/// A batch of rows that starts at row `first_row` of the file.
struct TableRows {
    first_row: u64,
    batch: RecordBatch,
}

impl Records for TableRows {
    fn send_rows(&self, columns: PlacedColumns<'_>, take: &mut dyn RecordSink) {
        take.take_columns(cells::parse_batch(&self.batch, self.first_row + 1, columns));
    }

    fn for_each_cell(
        &self,
        at: usize,
        columns: PlacedColumns<'_>,
        take: &mut dyn FnMut(CellText<'_>),
    ) {
        let array = self.batch.column(columns.layout.categorical[at]);
        cells::for_each_cell_text(array, columns.wanted, take);
    }
}

/// Tells for each wanted categorical column whether it holds lists in the file `path`.
fn lists(path: &Path, wanted: &WantedColumns) -> Result<Vec<bool>, Error> {
    let metadata = ParquetBytes::open(path)?.metadata(path)?;
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

/// Sends the rows of `path` in blocks, until `send` returns `false`.
fn send_rows(
    path: &Path,
    reading: &InputReading<'_>,
    send: &mut SendBlock<'_>,
) -> Result<(), Error> {
    let InputReading { wanted, label: need, observer, .. } = *reading;
    let file = ParquetBytes::open(path)?;
    file.note(path, observer)?;
    let metadata = file.metadata(path)?;
    let bytes = file.bytes();
    let names = names(metadata.schema());
    let whole = wanted.place_in_partition(&names, path, need)?;
    let mut used: Vec<usize> = whole.dense.iter().chain(&whole.categorical).copied().collect();
    used.extend(whole.label);
    used.extend(whole.time);
    used.sort_unstable();
    used.dedup();
    used.retain(|&index| index < names.len());
    check_types(metadata.schema(), &used, path)?;
    check_codecs(metadata.metadata(), &used, path)?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), used.iter().copied());
    let kept: Vec<String> = used.iter().map(|&index| names[index].clone()).collect();
    let layout = Arc::new(wanted.place_in_partition(&kept, path, need)?);
    let total = metadata.metadata().file_metadata().num_rows().max(1).cast_unsigned();
    let (mut rows, mut refused) = (0, None);
    let mut take = |batch: RecordBatch| {
        let first_row = rows;
        rows += batch.num_rows() as u64;
        let batch = match with_partition(batch, path, &layout.partition) {
            Ok(batch) => batch,
            Err(error) => {
                refused = Some(error);
                return false;
            }
        };
        // Parquet does not report bytes per row, so progress is estimated from the share of rows.
        let share = |rows: u64| (u128::from(bytes) * u128::from(rows) / u128::from(total)) as u64;
        observer.bytes_done.fetch_add(share(rows) - share(first_row), Ordering::Relaxed);
        send(Arc::clone(&layout), Box::new(TableRows { first_row, batch }))
    };
    file.read(path, metadata, mask, &mut take)?;
    refused.map_or(Ok(()), Err)
}

/// Appends a column to `batch` for each value encoded in the path of the file.
fn with_partition(
    batch: RecordBatch,
    path: &Path,
    partition: &[Vec<u8>],
) -> Result<RecordBatch, Error> {
    if partition.is_empty() {
        return Ok(batch);
    }
    let rows = batch.num_rows();
    let (mut fields, mut columns) = (batch.schema().fields().to_vec(), batch.columns().to_vec());
    for (at, value) in partition.iter().enumerate() {
        let values = BinaryArray::from_iter_values(std::iter::repeat_n(&value[..], rows));
        let name = format!("partition {at}");
        fields.push(Arc::new(Field::new(name, DataType::Binary, false)));
        columns.push(Arc::new(values) as ArrayRef);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(Schema::new(fields));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|error| Error::parquet(path)(error.into()))
}

/// Lists the columns of the file `path`.
fn columns(path: &Path) -> Result<InputColumns, Error> {
    let metadata = ParquetBytes::open(path)?.metadata(path)?;
    let mut columns = InputColumns::default();
    for field in metadata.schema().fields() {
        let (is_list, element) = match field.data_type() {
            DataType::List(element) => (true, element.data_type()),
            other => (false, other),
        };
        if is_readable(element) {
            columns.names.push(field.name().clone());
            columns.lists.push(is_list);
        } else {
            columns.unreadable.push((field.name().clone(), field.data_type().to_string()));
        }
    }
    Ok(columns)
}

/// The source of a Parquet file: a local file or an object on a network.
enum ParquetBytes {
    File(File),
    Object(Remote),
}

impl ParquetBytes {
    fn open(path: &Path) -> Result<Self, Error> {
        let content = match path.to_str().filter(|input| is_remote(input)) {
            Some(input) => Self::Object(Remote::open(input)?),
            None => Self::File(File::open(path).map_err(Error::open(path))?),
        };
        if content.bytes() == 0 {
            return Err(Error::EmptyInput { path: path.to_owned() });
        }
        Ok(content)
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.metadata().map_or(0, |about| about.len()),
            Self::Object(object) => object.bytes(),
        }
    }

    /// Records the file with `observer`. The pages of a Parquet file are read out of order, so the
    /// file is hashed as a whole.
    fn note(&self, path: &Path, observer: &ReadObserver) -> Result<(), Error> {
        let name = path.display().to_string();
        match self {
            Self::File(_) => observer.hash_file(&name),
            Self::Object(object) => {
                observer.note_object(&name, object.object());
                Ok(())
            }
        }
    }

    fn metadata(&self, path: &Path) -> Result<ArrowReaderMetadata, Error> {
        // With the writer's Arrow schema, the reader would produce dictionaries and views. The
        // values have the same meaning in the plain types.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = match self {
            Self::File(file) => ArrowReaderMetadata::load(file, options),
            Self::Object(object) => ArrowReaderMetadata::load(object, options),
        };
        metadata.map_err(Error::parquet(path))
    }

    /// Passes the rows to `take` in order, until it returns `false`.
    fn read(
        self,
        path: &Path,
        metadata: ArrowReaderMetadata,
        mask: ProjectionMask,
        take: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Error> {
        match self {
            Self::File(file) => {
                let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
                let reader = reader.with_projection(mask).with_batch_size(BATCH_ROWS).build();
                batches(path, reader.map_err(Error::parquet(path))?, take).map(|_| ())
            }
            Self::Object(object) => {
                object.for_each_group(path, &metadata, &mask, |group, bytes| {
                    let reader =
                        ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, metadata.clone());
                    let reader = reader.with_row_groups(vec![group]).with_projection(mask.clone());
                    let reader = reader.with_batch_size(BATCH_ROWS).build();
                    batches(path, reader.map_err(Error::parquet(path))?, take)
                })
            }
        }
    }
}

/// Passes the batches of `reader` to `take`, and returns whether `take` wants more rows.
fn batches(
    path: &Path,
    reader: ParquetRecordBatchReader,
    take: &mut dyn FnMut(RecordBatch) -> bool,
) -> Result<bool, Error> {
    for batch in reader {
        if !take(batch.map_err(|error| Error::parquet(path)(error.into()))?) {
            return Ok(false);
        }
    }
    Ok(true)
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
                expected: "booleans, integers, decimals, floats, text, times or lists of them",
                got: field.data_type().to_string(),
            });
        }
    }
    Ok(())
}

/// Fails before anything is read if a column uses a codec that the Parquet library was built
/// without.
fn check_codecs(metadata: &ParquetMetaData, used: &[usize], path: &Path) -> Result<(), Error> {
    let schema = metadata.file_metadata().schema_descr();
    for (leaf, column) in
        metadata.row_groups().iter().flat_map(|group| group.columns().iter().enumerate())
    {
        let codec = match column.compression() {
            Compression::BROTLI(_) => "Brotli",
            Compression::LZO => "LZO",
            _ => continue,
        };
        if used.contains(&schema.get_column_root_idx(leaf)) {
            let column = schema.get_column_root(leaf).name().to_owned();
            return Err(Error::Codec { path: path.to_owned(), column, codec });
        }
    }
    Ok(())
}

fn is_readable(kind: &DataType) -> bool {
    kind.is_integer()
        || matches!(
            kind,
            DataType::Boolean
                | DataType::Float16
                | DataType::Float32
                | DataType::Float64
                | DataType::Decimal32(..)
                | DataType::Decimal64(..)
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::FixedSizeBinary(_)
                | DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
        )
}
