//! Encodes a small table of named columns as a Parquet file in memory. Other crates use it for
//! results and reports.

use std::path::Path;
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::file::properties::WriterProperties;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};

use crate::error::Error;

/// The values of one column; `None` is written as null.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnValues {
    Integers(Vec<Option<i64>>),
    Unsigned(Vec<Option<u64>>),
    Floats(Vec<Option<f64>>),
    Booleans(Vec<Option<bool>>),
    Text(Vec<Option<String>>),
}

/// One named column of a table. All columns must have the same number of values.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumn {
    pub name: String,
    pub is_nullable: bool,
    pub values: ColumnValues,
}

/// Encodes `columns` as a Parquet file in memory. Errors name `path`.
///
/// # Errors
/// Returns [`Error::Parquet`], also if columns differ in length, or if a column that is not
/// nullable has a null.
pub fn encode_table(path: &Path, columns: Vec<TableColumn>) -> Result<Vec<u8>, Error> {
    let arrays = columns.into_iter().map(|column| {
        let array: ArrayRef = match column.values {
            ColumnValues::Integers(values) => Arc::new(Int64Array::from(values)),
            ColumnValues::Unsigned(values) => Arc::new(UInt64Array::from(values)),
            ColumnValues::Floats(values) => Arc::new(Float64Array::from(values)),
            ColumnValues::Booleans(values) => Arc::new(BooleanArray::from(values)),
            ColumnValues::Text(values) => Arc::new(StringArray::from(values)),
        };
        (column.name, array, column.is_nullable)
    });
    let batch = RecordBatch::try_from_iter_with_nullable(arrays)
        .map_err(|e| Error::parquet(path)(e.into()))?;
    let write = || {
        let level = ZstdLevel::try_new(1)?;
        let properties =
            WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
        writer.write(&batch)?;
        writer.into_inner()
    };
    write().map_err(Error::parquet(path))
}

#[cfg(test)]
mod tests;
