//! The Parquet files of a dataset: one row group encoded, appended, decoded.
//!
//! Columns in order: `label` f32, `dense_<name>` f32, `categorical_<name>` i64 or list of i64; none
//! null.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::error::Error;
use crate::manifest::Columns;
use crate::rows::{Bags, Rows};
use crate::shape::ColumnShape;

/// An encoded row group, not yet in a file.
pub(crate) struct Encoded {
    pub rows: u64,
    chunks: Vec<ArrowColumnChunk>,
}

/// Encodes row groups. One per thread.
pub(crate) struct Encoder {
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
}

impl Encoder {
    pub(crate) fn new(columns: &Columns) -> Result<Self, ParquetError> {
        let schema = arrow_schema(columns);
        let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties()?))?;
        let (_, factory) = writer.into_serialized_writer()?;
        Ok(Self { schema, factory })
    }

    /// Encodes `rows` as one row group.
    pub(crate) fn encode(&self, rows: Rows) -> Result<Encoded, ParquetError> {
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
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None)
        .build())
}

fn arrow_schema(columns: &Columns) -> SchemaRef {
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

fn arrays(rows: Rows) -> Result<Vec<ArrayRef>, ParquetError> {
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

/// Writes row groups to one file.
pub(crate) struct PartWriter {
    path: PathBuf,
    file: SerializedFileWriter<BufWriter<File>>,
}

impl PartWriter {
    pub(crate) fn create(path: &Path, columns: &Columns) -> Result<Self, Error> {
        let file = BufWriter::new(File::create_new(path).map_err(Error::write(path))?);
        let writer = properties()
            .and_then(|properties| {
                ArrowWriter::try_new(file, arrow_schema(columns), Some(properties))
            })
            .and_then(ArrowWriter::into_serialized_writer);
        let (file, _) = writer.map_err(Error::parquet_write(path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    pub(crate) fn append(&mut self, group: Encoded) -> Result<(), Error> {
        let append = || {
            let mut row_group = self.file.next_row_group()?;
            for chunk in group.chunks {
                chunk.append_to_row_group(&mut row_group)?;
            }
            row_group.close()
        };
        append().map(|_| ()).map_err(Error::parquet_write(&self.path))
    }

    /// Writes the footer and syncs; gives the file's length.
    pub(crate) fn finish(self) -> Result<u64, Error> {
        let file = self.file.into_inner().map_err(Error::parquet_write(&self.path))?;
        let sync = || {
            let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            file.sync_all()?;
            file.metadata()
        };
        Ok(sync().map_err(Error::write(&self.path))?.len())
    }
}

/// A file of a dataset, its footer read.
pub(crate) struct PartReader {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
}

impl PartReader {
    /// Opens `path` and checks that it has `columns`.
    pub(crate) fn open(path: &Path, columns: &Columns) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::open(path))?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
            .map_err(Error::parquet(path))?;
        let (expected, got) = (arrow_schema(columns), metadata.schema());
        let same =
            expected.fields().len() == got.fields().len()
                && expected.fields().iter().zip(got.fields()).all(|(a, b)| {
                    a.name() == b.name() && a.data_type().equals_datatype(b.data_type())
                });
        if !same {
            let problem = "columns differ from those of dataset.json".to_owned();
            return Err(Error::Manifest { path: path.to_owned(), problem });
        }
        Ok(Self { path: path.to_owned(), metadata })
    }

    /// Rows of each row group.
    pub(crate) fn group_rows(&self) -> Vec<u64> {
        let groups = self.metadata.metadata().row_groups();
        groups.iter().map(|group| group.num_rows().cast_unsigned()).collect()
    }

    /// Rows of row group `group`.
    pub(crate) fn rows_of(&self, group: usize) -> usize {
        self.metadata.metadata().row_group(group).num_rows() as usize
    }

    /// Values of the root columns in all row groups; of a list, an empty one counts as one.
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

    /// Decodes rows of row group `group`, at most `batch_rows` rows at a time: label, all dense
    /// columns and the categorical columns `categorical` (sorted, without duplicates), in that
    /// order.
    pub(crate) fn read(
        &self,
        (group, rows): (usize, Range<usize>),
        (dense, categorical): (usize, &[usize]),
        batch_rows: usize,
    ) -> Result<Batches<'_>, Error> {
        let file = File::open(&self.path).map_err(Error::open(&self.path))?;
        let roots = (0..=dense).chain(categorical.iter().map(|column| 1 + dense + column));
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots);
        let reader =
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
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
}

/// Bytes of the buffers in which one thread decodes rows of a row group of `rows` rows: of each
/// column a decompressed page, its dictionary and the reader.
///
/// Measured: a column of ids takes some 6 bytes per id of its group while it is read, most of it
/// for the dictionary, and a dense column 8 per row.
pub(crate) fn decode_bytes(dense: usize, categorical: &[ColumnShape], rows: u64) -> u64 {
    const READER_BYTES: f64 = 24.0 * 1024.0;
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

/// The rows asked for, some at a time: all of them, or an error.
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

/// The values of f32 column `column`.
pub(crate) fn floats(batch: &RecordBatch, column: usize) -> &[f32] {
    batch.column(column).as_primitive::<Float32Type>().values()
}

/// The values of a categorical column.
pub(crate) fn bags(batch: &RecordBatch, column: usize) -> Bags<'_> {
    let array = batch.column(column);
    match array.as_list_opt::<i32>() {
        None => Bags { values: array.as_primitive::<Int64Type>().values(), ends: None },
        Some(list) => {
            let offsets = list.value_offsets();
            let (first, last) = (offsets[0], offsets[list.len()]);
            let values = &list.values().as_primitive::<Int64Type>().values()[..];
            let ends = offsets[1..].iter().map(|&end| (end - first) as u32).collect();
            Bags { values: &values[first as usize..last as usize], ends: Some(Cow::Owned(ends)) }
        }
    }
}
