//! Tests that invalid input is counted and reported by file and line, or is an error that names the
//! place and the cause.

use std::path::PathBuf;

use data::{Dataset, Error, Strictness};
use proptest::prelude::*;
use serde_json::json;

use crate::fixture::{Folder, config, criteo, request, whole};

fn tsv() -> schema::DataConfig {
    config(json!({
        "format": "tsv", "columns": ["y", "x", "c"], "label": {"column": "y"},
        "dense": [{"column": "x"}], "categorical": [{"column": "c", "kind": "hex"}],
    }))
}

const BROKEN: &[u8] = b"1\t2\tff\n\
    1\t2\n\
    0\t\xff\xfe\tff\n\
    \n\
    0\t3\txyz\r\n\
    \t3\t1\n\
    0\t1\0\t1\n\
    1\t2\tff\textra\n\
    0\t4\t\n";

#[test]
fn malformed_lines_are_counted_and_named() {
    let folder = Folder::new();
    let inputs = [folder.file("a.tsv", BROKEN), folder.file("b.tsv", b"1\t1\t1\n0\tinf\t1\n")];
    let prepared = folder.prepare("out", &inputs, &tsv());
    let shown: Vec<String> = prepared.losses.first.iter().map(ToString::to_string).collect();
    let folder_name = folder.path("").to_str().unwrap().to_owned();
    expect_test::expect![[r#"
        a.tsv:2: expected 3 fields, got 2
        a.tsv:3: column "x": expected a number, got "��"
        a.tsv:5: column "c": expected 1 to 16 hexadecimal digits, got "xyz"
        a.tsv:6: column "y": the label is missing
        a.tsv:7: column "x": expected a number, got "1\0"
        a.tsv:8: expected 3 fields, got 4
        b.tsv:2: column "x": expected a number, got "inf""#]]
    .assert_eq(&shown.join("\n").replace(&folder_name, ""));
    assert_eq!(prepared.losses.malformed_lines, 7);
    assert_eq!(prepared.dataset.manifest().losses, prepared.losses);
    let batch = whole(&prepared.dataset, 1000);
    assert_eq!((batch.dense, batch.sparse.values), (vec![2.0, 4.0, 1.0], vec![255, 0, 1]));
}

/// A label of −1 would make the loss unbounded below, and a dense value that f32 rounds to infinity
/// would make every weight NaN.
#[test]
fn values_that_would_ruin_a_model_are_malformed() {
    let folder = Folder::new();
    let text = b"1\t2\tff\n-1\t2\tff\n2\t2\tff\n0.5\t-3e38\tff\n0\t1e39\tff\n0\t-1e300\tff\n";
    let prepared = folder.prepare("out", &[folder.file("a.tsv", text)], &tsv());
    let shown: Vec<String> = prepared.losses.first.iter().map(ToString::to_string).collect();
    let folder_name = folder.path("").to_str().unwrap().to_owned();
    expect_test::expect![[r#"
        a.tsv:2: column "y": expected a number from 0 to 1, or values in data.label.positive, got "-1"
        a.tsv:3: column "y": expected a number from 0 to 1, or values in data.label.positive, got "2"
        a.tsv:5: column "x": expected a number, got "1e39"
        a.tsv:6: column "x": expected a number, got "-1e300""#]]
    .assert_eq(&shown.join("\n").replace(&folder_name, ""));
    let batch = whole(&prepared.dataset, 1000);
    assert_eq!((batch.labels, batch.dense), (vec![1.0, 0.5], vec![2.0, -3e38]));
}

#[test]
fn ten_malformed_rows_are_kept_and_all_are_counted() {
    let folder = Folder::new();
    let inputs =
        [folder.file("a.tsv", format!("{}1\t1\t1\n", "bad\n".repeat(1_000_000)).as_bytes())];
    let losses = folder.prepare("out", &inputs, &tsv()).losses;
    assert_eq!((losses.malformed_lines, losses.first.len()), (1_000_000, 10));
    assert_eq!(losses.first[9].line, 10);
}

#[test]
fn strict_mode_stops_at_the_first_malformed_row() {
    let folder = Folder::new();
    let inputs = [folder.file("a.tsv", BROKEN)];
    let (config, out) = (tsv(), folder.path("out"));
    let mut request = request(&inputs, &config, None, &out);
    request.strictness = Strictness::Stop;
    match data::prepare(&request, &mut |_| {}) {
        Err(Error::Malformed(malformed)) => assert_eq!(malformed.line, 2),
        other => panic!("{other:?}"),
    }
    assert!(!out.exists() && !folder.path("out.partial").exists());
}

#[test]
fn an_output_folder_may_end_with_a_slash() {
    let folder = Folder::new();
    let inputs = [folder.file("a.tsv", b"1\t2\tff\n")];
    let prepared = folder.prepare("out/", &inputs, &tsv());
    assert_eq!(prepared.dataset.rows(), 1);
    assert!(folder.path("out/dataset.json").exists() && !folder.path("out.partial").exists());
}

fn error_of(content: &[u8], config: &schema::DataConfig) -> String {
    let folder = Folder::new();
    let inputs = [folder.file("input", content)];
    let error = folder.try_prepare("out", &inputs, config, None).unwrap_err();
    assert!(!folder.path("out").exists() && !folder.path("out.partial").exists());
    error.to_string().replace(&inputs[0], "FILE")
}

#[test]
fn files_without_rows_are_errors() {
    let parquet = config(json!({"format": "parquet", "label": {"column": "y"}}));
    let csv = config(json!({"format": "csv", "label": {"column": "y"}}));
    let shown = [
        error_of(b"", &tsv()),
        error_of(b"", &parquet),
        error_of(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0], &csv),
        error_of(b"\n\n", &tsv()),
        error_of(b"y\n", &csv),
        error_of(b"1\t2\n", &tsv()),
    ];
    expect_test::expect![[r#"
        FILE: the file is empty
        FILE: the file is empty
        FILE: the file is empty
        FILE: no usable rows, 0 malformed
        FILE: no usable rows, 0 malformed
        FILE: no usable rows, 1 malformed; first at line 1: expected 3 fields, got 2"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_truncated_archive_is_an_error_that_names_the_file() {
    let folder = Folder::new();
    let text = "1\t2\tff\n".repeat(50_000);
    let mut gzip = Vec::new();
    let mut encoder = flate2::read::GzEncoder::new(text.as_bytes(), flate2::Compression::fast());
    std::io::Read::read_to_end(&mut encoder, &mut gzip).unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (name, whole) in [("a.gz", gzip), ("a.zst", zstd)] {
        let inputs = [folder.file(name, &whole[..whole.len() - 9])];
        match folder.try_prepare("out", &inputs, &tsv(), None) {
            Err(Error::Read { path, .. }) => assert_eq!(path, PathBuf::from(&inputs[0])),
            other => panic!("{name}: {other:?}"),
        }
        assert!(!folder.path("out").exists());
    }
}

#[test]
fn an_endless_record_is_an_error() {
    let csv = config(json!({"format": "csv", "label": {"column": "y"}}));
    let quote = format!("y\n1\n\"{}", "1\n".repeat(9 << 20));
    let line = vec![b'1'; 17 << 20];
    let short = error_of(b"y\n1\n\"1\n1\n", &csv);
    let shown = [error_of(quote.as_bytes(), &csv), error_of(&line, &tsv()), short];
    expect_test::expect![[r#"
        FILE:3: record longer than 16777216 bytes (an unclosed quote, or not a text file?)
        FILE:1: record longer than 16777216 bytes (an unclosed quote, or not a text file?)
        FILE:3: the record's quoted field has no closing quote"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn csv_records_know_their_line_across_blank_and_quoted_lines() {
    let folder = Folder::new();
    let config = config(json!({"format": "csv", "label": {"column": "y"}}));
    let inputs = [folder.file("a.csv", b"\ny,t\n1,\"two\nlines\"\n\n\nbad,x\n0,\n")];
    let losses = folder.prepare("out", &inputs, &config).losses;
    let lines: Vec<u64> = losses.first.iter().map(|malformed| malformed.line).collect();
    assert_eq!(lines, [7]);
}

#[test]
fn an_existing_output_folder_is_not_touched() {
    let folder = Folder::new();
    let inputs = [folder.file("a.tsv", b"1\t2\tff\n")];
    folder.prepare("out", &inputs, &tsv());
    match folder.try_prepare("out", &inputs, &tsv(), None) {
        Err(Error::OutExists { path }) => assert_eq!(path, folder.path("out")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn standard_input_can_not_be_read_twice() {
    let folder = Folder::new();
    let config = criteo("criteo-dlrm", &json!({"mode": "exact"}));
    let error = folder.try_prepare("out", &["-".to_owned()], &config, None).unwrap_err();
    expect_test::expect!["standard input can be read only once, but standardized columns and exact ids need another pass; use files"]
        .assert_eq(&error.to_string());
}

#[test]
fn a_damaged_dataset_is_refused() {
    let folder = Folder::new();
    let inputs = [folder.file("a.tsv", b"1\t2\tff\n")];
    let dataset = folder.prepare("out", &inputs, &tsv()).dataset;
    let part = dataset.dir().join("rows-00000.parquet");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..bytes.len() - 1]).unwrap();
    match Dataset::open(dataset.dir()) {
        Err(Error::PartSize { expected, got, .. }) => assert_eq!(expected, got + 1),
        other => panic!("{other:?}"),
    }
    let manifest = dataset.dir().join("dataset.json");
    std::fs::write(&manifest, "{\"version\": 9}").unwrap();
    let error = Dataset::open(dataset.dir()).unwrap_err().to_string();
    assert!(error.ends_with("dataset.json: version: expected 2, got 9"), "{error}");
}

/// Generates text that is mostly well-formed, with noise in it.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\t".to_vec()),
        Just(b",".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"1\t2\tff\n".to_vec()),
        Just(b"y,x,c\n".to_vec()),
        Just(b"1,2,3|4\n".to_vec()),
        Just(b"\xef\xbb\xbf".to_vec()),
        Just(b"\x1f\x8b\x08\0".to_vec()),
        Just(b"\x28\xb5\x2f\xfd".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_input_makes_a_reader_panic_or_lose_a_line_silently(bytes in noise()) {
        let folder = Folder::new();
        let inputs = [folder.file("noise", &bytes)];
        let csv = config(json!({
            "format": "csv", "label": {"column": "y"}, "dense": [{"column": "x"}],
            "categorical": [{"column": "c", "separator": "|"}],
        }));
        let _ = folder.try_prepare("csv", &inputs, &csv, None);
        let parquet = config(json!({"format": "parquet", "label": {"column": "y"}}));
        let _ = folder.try_prepare("parquet", &inputs, &parquet, None);
        let read = folder.try_prepare("tsv", &inputs, &tsv(), None);
        let packed = bytes.starts_with(b"\x1f\x8b") || bytes.starts_with(b"\x28\xb5\x2f\xfd");
        if let (Ok(prepared), false) = (read, packed) {
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            let lines = text.split(|&byte| byte == b'\n');
            let records = lines.filter(|line| !line.is_empty() && *line != b"\r").count() as u64;
            prop_assert_eq!(prepared.dataset.rows() + prepared.losses.malformed_lines, records);
        }
    }
}
