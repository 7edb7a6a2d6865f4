//! Tests of the schema and the rows of encoded tables.

use std::path::Path;

use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use bytes::Bytes;

use super::{ColumnValues, TableColumn, encode_table};
use crate::error::Error;

/// Encodes a column of each type, nullable and not nullable. Returns the columns that the file
/// declares, and its number of rows.
fn declared(is_value: Option<bool>) -> (Vec<String>, usize) {
    // The table has no row, a row of nulls where the column allows them, or a row of values.
    fn cells<T>(is_value: Option<bool>, is_nullable: bool, value: T) -> Vec<Option<T>> {
        let cell = |is_value: bool| (is_value || !is_nullable).then_some(value);
        is_value.map(cell).into_iter().collect()
    }
    let columns = [true, false].into_iter().flat_map(|is_nullable| {
        let column =
            |name: &str, values| TableColumn { name: name.to_owned(), is_nullable, values };
        [
            column("integer", ColumnValues::Integers(cells(is_value, is_nullable, -1))),
            column("unsigned", ColumnValues::Unsigned(cells(is_value, is_nullable, u64::MAX))),
            column("float", ColumnValues::Floats(cells(is_value, is_nullable, 0.5))),
            column("boolean", ColumnValues::Booleans(cells(is_value, is_nullable, true))),
            column("text", ColumnValues::Text(cells(is_value, is_nullable, "a".to_owned()))),
        ]
    });
    let bytes = encode_table(Path::new("t.parquet"), columns.collect()).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
    let schema = builder.schema().clone();
    let line = |field: &arrow_schema::FieldRef| {
        format!("{} {} {}", field.name(), field.data_type(), field.is_nullable())
    };
    let rows = builder.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum();
    (schema.fields().iter().map(line).collect(), rows)
}

#[test]
fn types_do_not_depend_on_the_values() {
    let (columns, rows) = declared(Some(true));
    assert_eq!(rows, 1);
    assert_eq!(
        columns[..5],
        [
            "integer Int64 true",
            "unsigned UInt64 true",
            "float Float64 true",
            "boolean Boolean true",
            "text Utf8 true"
        ]
    );
    assert!(columns[5..].iter().all(|column| column.ends_with(" false")), "{columns:?}");
    assert_eq!(declared(Some(false)), (columns.clone(), 1));
    assert_eq!(declared(None), (columns, 0));
}

#[test]
fn a_null_in_a_column_without_nulls_is_an_error() {
    let values = ColumnValues::Integers(vec![None]);
    let column = TableColumn { name: "rank".to_owned(), is_nullable: false, values };
    let error = encode_table(Path::new("t.parquet"), vec![column]).unwrap_err();
    assert!(matches!(error, Error::Parquet { .. }), "{error}");
}
