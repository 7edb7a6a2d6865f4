//! Reads and writes the Parquet files of a dataset, one row group at a time.
//!
//! The columns in order are `label` f32, `dense_<name>` f32, and `categorical_<name>` i64 or list
//! of i64. Nulls do not occur.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::parquet::arrow::ArrowWriter;
use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use ::parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves,
};
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{KeyValue, RowGroupMetaData};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::checksum::Checksum;
use crate::dataset::column_shape::ColumnShape;
use crate::dataset::manifest::{DatasetColumns, DatasetPart, Footer};
use crate::dataset::prepared_rows::{ColumnBags, PreparedRows};
use crate::error::Error;
use crate::parse::parquet::checked::{self, CheckedBytes, chunk_range};

/// Key in the footer's metadata. The value of this key holds the checksum of every column chunk:
/// sixteen hexadecimal digits each, row group by row group.
const CHECKSUMS: &str = "rowmill.checksums";

/// A row group that is encoded and compressed but not yet written to a file.
pub(crate) struct Encoded {
    pub rows: u64,
    chunks: Vec<ArrowColumnChunk>,
}

/// Encodes row groups as Parquet. Each encoding thread has its own encoder.
pub(crate) struct Encoder {
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
}

impl Encoder {
    pub(crate) fn new(columns: &DatasetColumns) -> Result<Self, ParquetError> {
        let schema = arrow_schema(columns);
        let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties()?))?;
        let (_, factory) = writer.into_serialized_writer()?;
        Ok(Self { schema, factory })
    }

    pub(crate) fn encode(&self, rows: PreparedRows) -> Result<Encoded, ParquetError> {
        let count = rows.len() as u64;
        let mut chunks = Vec::with_capacity(self.schema.fields().len());
        let writers = self.factory.create_column_writers(0)?;
        let arrays = arrays(rows)?;
        for ((mut writer, array), field) in
            writers.into_iter().zip(arrays).zip(self.schema.fields())
        {
            for leaf in compute_leaves(field, &array)? {
                writer.write(&leaf)?;
            }
            chunks.push(writer.close()?);
        }
        Ok(Encoded { rows: count, chunks })
    }
}

fn properties() -> Result<WriterProperties, ParquetError> {
    Ok(WriterProperties::builder()
        // The default contains the library's version, so an upgrade would change the footer of
        // equal rows.
        .set_created_by("rowmill".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None)
        .build())
}

fn arrow_schema(columns: &DatasetColumns) -> SchemaRef {
    let mut fields = vec![Field::new("label", DataType::Float32, false)];
    for name in &columns.dense {
        fields.push(Field::new(format!("dense_{name}"), DataType::Float32, false));
    }
    for column in &columns.categorical {
        let name = format!("categorical_{}", column.name);
        fields.push(if column.is_list {
            Field::new_list(name, element(), false)
        } else {
            Field::new(name, DataType::Int64, false)
        });
    }
    Arc::new(Schema::new(fields))
}

fn element() -> Field {
    Field::new("element", DataType::Int64, false)
}

fn arrays(rows: PreparedRows) -> Result<Vec<ArrayRef>, ParquetError> {
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(Float32Array::from(rows.labels))];
    arrays.extend(rows.dense.into_iter().map(|v| Arc::new(Float32Array::from(v)) as ArrayRef));
    for column in rows.categorical {
        let values = Arc::new(Int64Array::from(column.values));
        let Some(ends) = column.ends else {
            arrays.push(values);
            continue;
        };
        let offsets: Vec<i32> = std::iter::once(0).chain(ends.iter().map(|&e| e as i32)).collect();
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        arrays.push(Arc::new(ListArray::try_new(Arc::new(element()), offsets, values, None)?));
    }
    Ok(arrays)
}

/// Appends encoded row groups to one file and collects the checksum of every column chunk.
pub(crate) struct PartWriter {
    path: PathBuf,
    file: File,
    /// Writer of the Parquet format, whose buffer holds the encoded bytes that are not yet in
    /// `file`.
    encoder: SerializedFileWriter<Vec<u8>>,
    /// Bytes written to `file` so far.
    written: u64,
    /// Checksums of all column chunks, in the form of [`CHECKSUMS`].
    checksums: String,
}

impl PartWriter {
    pub(crate) fn create(path: &Path, columns: &DatasetColumns) -> Result<Self, Error> {
        let file = File::create_new(path).map_err(Error::write(path))?;
        let encoder = properties()
            .and_then(|properties| {
                ArrowWriter::try_new(Vec::new(), arrow_schema(columns), Some(properties))
            })
            .and_then(ArrowWriter::into_serialized_writer);
        let (encoder, _) = encoder.map_err(Error::parquet(path))?;
        let path = path.to_owned();
        Ok(Self { path, file, encoder, written: 0, checksums: String::new() })
    }

    pub(crate) fn append(&mut self, group: Encoded) -> Result<(), Error> {
        let append = || {
            let mut row_group = self.encoder.next_row_group()?;
            for chunk in group.chunks {
                chunk.append_to_row_group(&mut row_group)?;
            }
            let group = row_group.close()?;
            self.encoder.flush()?;
            Ok(group)
        };
        let group = append().map_err(Error::parquet(&self.path))?;
        let mut bytes = std::mem::take(self.encoder.inner_mut());
        for column in 0..group.num_columns() {
            let chunk = chunk_range(&group, column)
                .and_then(|range| relative_range(range, self.written, bytes.len()))
                .ok_or_else(|| ParquetError::General("a misplaced column chunk".to_owned()))
                .map_err(Error::parquet(&self.path))?;
            self.checksums.push_str(&Checksum::compute(&bytes[chunk]).to_string());
        }
        self.write(&bytes)?;
        // The allocation is reused for the next row group.
        bytes.clear();
        *self.encoder.inner_mut() = bytes;
        Ok(())
    }

    /// Writes the footer and syncs the file. Returns the length of the file, and the length and
    /// checksum of its footer.
    pub(crate) fn finish(mut self) -> Result<(u64, Footer), Error> {
        let checksums = std::mem::take(&mut self.checksums);
        self.encoder.append_key_value_metadata(KeyValue::new(CHECKSUMS.to_owned(), checksums));
        self.encoder.finish().map_err(Error::parquet(&self.path))?;
        let bytes = std::mem::take(self.encoder.inner_mut());
        self.write(&bytes)?;
        self.file.sync_all().map_err(Error::write(&self.path))?;
        let footer = Footer { bytes: bytes.len() as u64, checksum: Checksum::compute(&bytes) };
        Ok((self.written, footer))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::write(&self.path))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Translates `range` to offsets within a buffer of `length` bytes that starts at byte `first`.
fn relative_range(range: Range<u64>, first: u64, length: usize) -> Option<Range<usize>> {
    let start = usize::try_from(range.start.checked_sub(first)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(first)?).ok()?;
    (start <= end && end <= length).then_some(start..end)
}

/// Reads one Parquet file of a dataset, whose footer has been verified against the manifest's
/// checksum.
pub(crate) struct PartReader {
    path: PathBuf,
    bytes: u64,
    metadata: ArrowReaderMetadata,
    /// Checksums of the column chunks, one per row group and column; `None` in a dataset without
    /// checksums.
    checksums: Option<Vec<Checksum>>,
    pages: Arc<AtomicU64>,
}

impl PartReader {
    /// Opens `part` at `path` and checks that its columns are `columns`. Decompressed pages are
    /// counted in `pages`.
    pub(crate) fn open(
        path: &Path,
        part: &DatasetPart,
        columns: &DatasetColumns,
        pages: &Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::open(path))?;
        let options = ArrowReaderOptions::new();
        let metadata = match part.footer {
            None => ArrowReaderMetadata::load(&file, options),
            Some(Footer { bytes, checksum }) => {
                let range = part.bytes.saturating_sub(bytes)..part.bytes;
                let place = || "footer".to_owned();
                let footer = checked::read_range(&file, path, range, Some(checksum), place)?;
                ArrowReaderMetadata::load(&footer, options)
            }
        };
        let metadata = metadata.map_err(Error::parquet(path))?;
        let (expected, got) = (arrow_schema(columns), metadata.schema());
        // Types are compared without the names of list elements, which depend on the writer.
        let same =
            expected.fields().len() == got.fields().len()
                && expected.fields().iter().zip(got.fields()).all(|(a, b)| {
                    a.name() == b.name() && a.data_type().equals_datatype(b.data_type())
                });
        let problem = |problem: String| Error::Manifest { path: path.to_owned(), problem };
        if !same {
            return Err(problem("columns differ from those of dataset.json".to_owned()));
        }
        let checksums = part.footer.map(|_| checksums(&metadata)).transpose().map_err(problem)?;
        let (path, pages) = (path.to_owned(), Arc::clone(pages));
        Ok(Self { path, bytes: part.bytes, metadata, checksums, pages })
    }

    /// Returns the number of rows of each row group.
    pub(crate) fn group_rows(&self) -> Vec<u64> {
        let groups = self.metadata.metadata().row_groups();
        groups.iter().map(|group| group.num_rows().cast_unsigned()).collect()
    }

    /// Returns the number of rows of row group `group`.
    pub(crate) fn rows_of(&self, group: usize) -> usize {
        self.metadata.metadata().row_group(group).num_rows() as usize
    }

    /// Counts the values of the first `roots` columns over all row groups. An empty list counts as
    /// one value.
    pub(crate) fn values(&self, roots: usize) -> Vec<u64> {
        let mut values = vec![0; roots];
        for group in self.metadata.metadata().row_groups() {
            let columns = group.columns().iter().take(roots);
            for (sum, column) in values.iter_mut().zip(columns) {
                *sum += column.num_values().cast_unsigned();
            }
        }
        values
    }

    /// Decodes rows of row group `group` in batches of at most `batch_rows` rows. A batch holds the
    /// label, the first `dense` dense columns and the categorical columns `categorical` (sorted,
    /// without duplicates), in this order.
    pub(crate) fn read(
        &self,
        group: usize,
        rows: Range<usize>,
        dense: usize,
        categorical: &[usize],
        batch_rows: usize,
    ) -> Result<Batches<'_>, Error> {
        let roots = || (0..=dense).chain(categorical.iter().map(|column| 1 + dense + column));
        let chunks = self.chunks(group, roots())?;
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots());
        let reader =
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, self.metadata.clone())
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(batch_rows)
                .with_offset(rows.start)
                .with_limit(rows.len())
                .build()
                .map_err(Error::parquet(&self.path))?;
        let rows = rows.len();
        Ok(Batches { path: &self.path, reader, group, rows, left: rows })
    }

    /// Reads the bytes of some columns of a row group and verifies their checksums. Every column of
    /// a dataset, lists included, is a single leaf column of the file.
    fn chunks(
        &self,
        group: usize,
        columns: impl Iterator<Item = usize>,
    ) -> Result<CheckedBytes, Error> {
        let file = File::open(&self.path).map_err(Error::open(&self.path))?;
        let about = self.metadata.metadata().row_group(group);
        let mut chunks = CheckedBytes::empty(self.bytes).counting(&self.pages);
        for column in columns {
            let range = chunk_range(about, column).ok_or_else(|| {
                let problem =
                    format!("row group {group}, column {column}: invalid range in the file");
                Error::Manifest { path: self.path.clone(), problem }
            })?;
            let checksum = self.checksums.as_ref();
            let checksum = checksum.map(|all| all[group * about.num_columns() + column]);
            let place = || self.place(group, column);
            chunks.add(checked::read_range(&file, &self.path, range, checksum, place)?);
        }
        Ok(chunks)
    }

    /// Describes a column chunk for an error message.
    fn place(&self, group: usize, column: usize) -> String {
        let groups = self.metadata.metadata().row_groups();
        let first: i64 = groups[..group].iter().map(RowGroupMetaData::num_rows).sum();
        let end = first + groups[group].num_rows();
        let name = self.metadata.schema().field(column).name();
        format!("column {name:?}, rows {first}..{end}")
    }
}

/// Parses the checksums of all column chunks from the footer.
fn checksums(metadata: &ArrowReaderMetadata) -> Result<Vec<Checksum>, String> {
    let file = metadata.metadata().file_metadata();
    let pairs = file.key_value_metadata().map_or(&[][..], Vec::as_slice);
    let value =
        pairs.iter().find(|pair| pair.key == CHECKSUMS).and_then(|pair| pair.value.as_ref());
    let digits = value.ok_or_else(|| format!("expected {CHECKSUMS} in the footer, got none"))?;
    let (each, rest) = digits.as_bytes().as_chunks::<16>();
    let each = each.iter().map(|digits| String::from_utf8_lossy(digits).parse());
    let checksums: Vec<Checksum> = each.collect::<Result<_, _>>()?;
    let expected = metadata.metadata().num_row_groups() * file.schema_descr().num_columns();
    if checksums.len() != expected || !rest.is_empty() {
        return Err(format!(
            "expected {expected} checksums in the footer, got {}",
            checksums.len()
        ));
    }
    Ok(checksums)
}

/// Estimates the bytes of the buffers with which one thread decodes a row group of `rows` rows: per
/// column a decompressed page, a dictionary and the reader with its decompressor.
///
/// By measurement, a categorical column takes 6 bytes per id of its row group, most of it for the
/// dictionary. A dense column takes 8 bytes per row. With a thousand columns, each column takes
/// another 70 KiB.
pub(crate) fn decode_bytes(dense: usize, categorical: &[ColumnShape], rows: u64) -> u64 {
    const READER_BYTES: f64 = 70.0 * 1024.0;
    const VALUE_BYTES: f64 = 6.0;
    const NUMBER_BYTES: f64 = 8.0;
    let values = |column: &ColumnShape| {
        let levels = if column.is_list { 2.0 } else { 0.0 };
        rows as f64 * (column.ids_per_row * VALUE_BYTES + levels)
    };
    let ids: f64 = categorical.iter().map(|column| READER_BYTES + values(column)).sum();
    let numbers = (1 + dense) as f64 * (READER_BYTES + rows as f64 * NUMBER_BYTES);
    (ids + numbers) as u64
}

/// Iterator over the batches of a read, which yields all requested rows or ends with an error.
pub(crate) struct Batches<'a> {
    path: &'a Path,
    reader: ParquetRecordBatchReader,
    group: usize,
    rows: usize,
    left: usize,
}

impl Iterator for Batches<'_> {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let problem = match self.reader.next() {
            Some(Ok(batch)) if batch.num_rows() <= self.left => {
                self.left -= batch.num_rows();
                return Some(Ok(batch));
            }
            Some(Err(error)) => error.into(),
            None if self.left == 0 => return None,
            _ => {
                let (group, rows) = (self.group, self.rows);
                ParquetError::General(format!("row group {group}: expected {rows} rows"))
            }
        };
        self.left = 0;
        Some(Err(Error::parquet(self.path)(problem)))
    }
}

/// Returns the values of the f32 column `column`.
pub(crate) fn float_values(batch: &RecordBatch, column: usize) -> &[f32] {
    batch.column(column).as_primitive::<Float32Type>().values()
}

/// Returns the ids of a categorical column, with the end of each row's ids if it holds lists.
pub(crate) fn id_bags(batch: &RecordBatch, column: usize) -> ColumnBags<'_> {
    let array = batch.column(column);
    match array.as_list_opt::<i32>() {
        None => {
            let values = array.as_primitive::<Int64Type>().values();
            ColumnBags { values, ends: None, unsigned: false }
        }
        Some(list) => {
            let offsets = list.value_offsets();
            // The offsets of a slice do not start at 0, because it shares the values of the whole
            // array.
            let (first, last) = (offsets[0], offsets[list.len()]);
            let values = &list.values().as_primitive::<Int64Type>().values()[..];
            let ends = offsets[1..].iter().map(|&end| (end - first) as u32).collect();
            let values = &values[first as usize..last as usize];
            ColumnBags { values, ends: Some(Cow::Owned(ends)), unsigned: false }
        }
    }
}
