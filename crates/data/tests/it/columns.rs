//! Tests of columns of all kinds from CSV, TSV and Parquet: the same values must give the same
//! samples.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int32Array, RecordBatch, StringArray};
use data::{ColumnValues, Dataset, TableColumn, encode_table};
use schema::DataConfig;
use serde_json::json;

use crate::fixture::{Folder, bags, config, whole};

/// Writes a Parquet file compressed as pandas does by default.
pub fn parquet_file(path: &Path, columns: Vec<(&str, ArrayRef)>) -> String {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_compression(parquet::basic::Compression::SNAPPY)
        .build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path.to_str().unwrap().to_owned()
}

fn shop(format: &str) -> DataConfig {
    config(json!({
        "format": format,
        "label": {"column": "clicked", "positive": ["true"]},
        "dense": [{"column": "price", "transform": "log3"}, {"column": "count"}],
        "categorical": [
            {"column": "shop"},
            {"column": "count", "kind": "integer"},
            {"column": "code", "kind": "hex"},
            {"column": "tags", "separator": "|"},
            {"column": "seen", "kind": "integer", "separator": "|"},
        ],
    }))
}

const CSV: &str = "\
clicked, seen ,price,count,shop,code,tags,unused
true,1|2|3,0.5,7,\"Smith, \"\"Sons\"\"\",ff,red|blue,x
false,,,-1,\u{e9}t\u{e9},0xFFFFFFFFFFFFFFFF,,y
false,9,-5,,,,| green |,z
";

fn check_shop(dataset: &Dataset) {
    let batch = whole(dataset, 1 << 62);
    assert_eq!(batch.labels, [1.0, 0.0, 0.0]);
    let expected = [3.5f32.ln(), 7.0, 3f32.ln(), -1.0, 0.0, 0.0];
    for (got, expected) in batch.dense.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-6, "{:?}", batch.dense);
    }
    let id = |text: &str| (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) % (1 << 62)) as i64;
    assert_eq!(bags(&batch, 0), [[id("Smith, \"Sons\"")], [id("\u{e9}t\u{e9}")], [0]]);
    // The id is the bit pattern as an unsigned number, modulo the rows: (2^64 − 1) mod 2^62.
    let all_ones = (1 << 62) - 1;
    assert_eq!(bags(&batch, 1), [[7], [all_ones], [0]]);
    assert_eq!(bags(&batch, 2), [[255], [all_ones], [0]]);
    assert_eq!(bags(&batch, 3), [vec![id("red"), id("blue")], vec![], vec![id("green")]]);
    assert_eq!(bags(&batch, 4), [vec![1, 2, 3], vec![], vec![9]]);
}

#[test]
fn csv_with_quotes_and_lists() {
    let folder = Folder::new();
    let inputs = [folder.file("shop.csv", CSV.as_bytes())];
    let prepared = folder.prepare("out", &inputs, &shop("csv"));
    assert_eq!(prepared.losses.malformed_lines, 0, "{:?}", prepared.losses.first);
    check_shop(&prepared.dataset);
    let lists: Vec<bool> =
        prepared.dataset.manifest().columns.categorical.iter().map(|c| c.is_list).collect();
    assert_eq!(lists, [false, false, false, true, true]);
}

#[test]
fn quotes_in_tsv_are_ordinary_characters() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "tsv", "label": {"column": "y"}, "categorical": [{"column": "c"}],
    }));
    let inputs = [folder.file("x.tsv", b"c\ty\n\"a\t1\n b\t0")];
    let batch = whole(&folder.prepare("out", &inputs, &config).dataset, 1 << 62);
    let id = |text: &[u8]| (xxhash_rust::xxh3::xxh3_64(text) % (1 << 62)) as i64;
    assert_eq!(batch.sparse.values, [id(b"\"a"), id(b"b")]);
}

#[test]
fn parquet_with_nulls_and_list_columns() {
    let folder = Folder::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("red"), Some("blue")]);
    tags.append_null();
    tags.append_value([None, Some("green")]);
    let mut seen = ListBuilder::new(Int64Builder::new());
    seen.append_value([Some(1), Some(2), Some(3)]);
    seen.append_value([]);
    seen.append_value([Some(9)]);
    let shops = [Some("Smith, \"Sons\""), Some("\u{e9}t\u{e9}"), None];
    let codes = [Some("ff"), Some("FFFFFFFFFFFFFFFF"), None];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("clicked", Arc::new(BooleanArray::from(vec![true, false, false]))),
        ("tags", Arc::new(tags.finish())),
        ("seen", Arc::new(seen.finish())),
        ("price", Arc::new(Float64Array::from(vec![Some(0.5), Some(f64::NAN), Some(-5.0)]))),
        ("count", Arc::new(Int32Array::from(vec![Some(7), Some(-1), None]))),
        ("shop", Arc::new(StringArray::from(shops.to_vec()))),
        ("code", Arc::new(StringArray::from(codes.to_vec()))),
    ];
    let inputs = [parquet_file(&folder.path("shop.parquet"), columns)];
    let prepared = folder.prepare("out", &inputs, &shop("parquet"));
    assert_eq!(prepared.losses.malformed_lines, 0, "{:?}", prepared.losses.first);
    check_shop(&prepared.dataset);
    let error = folder.try_prepare("text", &inputs, &shop("csv"), None).unwrap_err().to_string();
    let expected = ": expected text, plain or compressed, got a Parquet file";
    assert_eq!(error, format!("{}{expected}", inputs[0]));
}

#[test]
fn text_that_begins_with_the_magic_of_parquet_is_text() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "csv", "label": {"column": "PAR1"}, "dense": [{"column": "x"}],
    }));
    let inputs = [folder.file("a.csv", b"PAR1,x\n1,2\n0,3\n")];
    assert_eq!(folder.prepare("out", &inputs, &config).dataset.rows(), 2);
}

#[test]
fn malformed_parquet_rows_are_skipped_with_their_first_problem() {
    let folder = Folder::new();
    let mut seen = ListBuilder::new(StringBuilder::new());
    for list in [&["1"][..], &["2", "x"], &[], &["3", "4"], &["y"], &["5"]] {
        seen.append_value(list.iter().map(Some));
    }
    let prices = [0.5, 1.0, f64::INFINITY, f64::NAN, 2.0, 3.0];
    let counts = [Some(1.0), Some(2.0), Some(3.5), None, Some(0.5), Some(-6.0)];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("y", Arc::new(Int32Array::from(vec![0, 1, 1, 0, 1, 2]))),
        ("seen", Arc::new(seen.finish())),
        ("price", Arc::new(Float64Array::from(prices.to_vec()))),
        ("count", Arc::new(Float64Array::from(counts.to_vec()))),
    ];
    let inputs = [parquet_file(&folder.path("x.parquet"), columns)];
    let config = config(json!({
        "format": "parquet", "label": {"column": "y"}, "dense": [{"column": "price"}],
        "categorical": [
            {"column": "count", "kind": "integer"},
            {"column": "seen", "kind": "integer"},
        ],
    }));
    let prepared = folder.prepare("out", &inputs, &config);
    let problem = |row: &data::Malformed| format!("row {}: {}", row.line, row.reason);
    let problems: Vec<String> = prepared.losses.first.iter().map(problem).collect();
    expect_test::expect![[r#"
        row 2: column "seen": expected an integer of 64 bits, got "x"
        row 3: column "price": expected a number, got "inf"
        row 5: column "count": expected an integer of 64 bits, got "0.5"
        row 6: column "y": expected a number from 0 to 1, or values in data.label.positive, got "2""#]]
    .assert_eq(&problems.join("\n"));
    let batch = whole(&prepared.dataset, 1 << 62);
    assert_eq!((batch.labels, batch.dense), (vec![0.0, 0.0], vec![0.5, 0.0]));
    assert_eq!(batch.sparse.values, [1, 0, 1, 3, 4]);
    assert_eq!(batch.sparse.offsets, [0, 1, 2, 3, 5]);
}

#[test]
fn lists_where_the_first_file_has_single_categories_are_refused_by_the_columns_name() {
    let folder = Folder::new();
    let file = |name: &str, shops: ArrayRef| {
        let labels: ArrayRef = Arc::new(Int32Array::from(vec![0, 1]));
        parquet_file(&folder.path(name), vec![("y", labels), ("shop", shops)])
    };
    let single = file("a.parquet", Arc::new(Int32Array::from(vec![1, 2])));
    let mut lists = ListBuilder::new(Int64Builder::new());
    lists.append_value([Some(3)]);
    lists.append_value([Some(4), Some(5)]);
    let inputs = [single, file("b.parquet", Arc::new(lists.finish()))];
    let config = config(json!({
        "format": "parquet", "label": {"column": "y"},
        "categorical": [{"column": "shop", "kind": "integer"}],
    }));
    let prepared = folder.prepare("out", &inputs, &config);
    assert_eq!((prepared.dataset.rows(), prepared.losses.malformed_lines), (3, 1));
    let reason = &prepared.losses.first[0].reason;
    assert_eq!(&**reason, "column \"shop\": expected one category, got 2");
}

#[test]
fn a_prepared_dataset_is_parquet_that_can_be_prepared_again() {
    let folder = Folder::new();
    let inputs = [folder.file("shop.csv", CSV.as_bytes())];
    let first = folder.prepare("first", &inputs, &shop("csv")).dataset;
    let categorical = ["shop", "count", "code", "tags", "seen"]
        .map(|name| json!({"column": format!("categorical_{name}"), "kind": "integer"}));
    let again = config(json!({
        "format": "parquet",
        "label": {"column": "label"},
        "dense": [{"column": "dense_price"}, {"column": "dense_count"}],
        "categorical": categorical,
    }));
    let part = first.dir().join("rows-00000.parquet").to_str().unwrap().to_owned();
    let second = folder.prepare("second", &[part], &again).dataset;
    assert_eq!(whole(&first, 1 << 62), whole(&second, 1 << 62));
}

#[test]
fn an_unsupported_column_type_is_named() {
    let folder = Folder::new();
    let inner = Arc::new(arrow_schema::Field::new("a", arrow_schema::DataType::Int32, false));
    let values: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let nested = arrow_array::StructArray::from(vec![(inner, values)]);
    let columns: Vec<(&str, ArrayRef)> =
        vec![("clicked", Arc::new(BooleanArray::from(vec![true]))), ("price", Arc::new(nested))];
    let inputs = [parquet_file(&folder.path("x.parquet"), columns)];
    let config = config(json!({
        "format": "parquet", "label": {"column": "clicked"}, "dense": [{"column": "price"}],
    }));
    let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
    let expected = "column \"price\": expected booleans, integers, decimals, floats, text, times or \
                    lists of them, got Struct(";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_missing_column_is_named_with_the_available_ones() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "csv", "label": {"column": "y"}, "dense": [{"column": "price"}],
    }));
    let inputs = [folder.file("x.csv", b"\xef\xbb\xbfy,prize\n1,2\n")];
    let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
    let error = error.replace(inputs[0].as_str(), "FILE");
    expect_test::expect![[r#"FILE: no column "price"; there are y, prize"#]].assert_eq(&error);
}

#[test]
fn an_encoded_table_reads_back() {
    let folder = Folder::new();
    let path = folder.path("table.parquet");
    let column =
        |name: &str, values| TableColumn { name: name.to_owned(), is_nullable: false, values };
    let columns = vec![
        column("y", ColumnValues::Floats(vec![Some(0.0), Some(1.0)])),
        column("c", ColumnValues::Integers(vec![Some(5), Some(-1)])),
        column("t", ColumnValues::Text(vec![Some("7".into()), Some("8".into())])),
    ];
    std::fs::write(&path, encode_table(&path, columns).unwrap()).unwrap();
    let config = config(json!({
        "format": "parquet", "label": {"column": "y"},
        "categorical": [{"column": "c", "kind": "integer"}, {"column": "t", "kind": "integer"}],
    }));
    let dataset = folder.prepare("out", &[path.to_str().unwrap().to_owned()], &config).dataset;
    let batch = whole(&dataset, 10);
    assert_eq!(batch.labels, [0.0, 1.0]);
    assert_eq!(batch.sparse.values, [5, 9, 7, 8]);
}
