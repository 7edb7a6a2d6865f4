//! Tests of issue 23, item 12: files whose format was misidentified, or that were refused without
//! reason.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use data::{BlockPace, Error, FeaturePlan, ScoreRequest, Strictness, read_for_scoring};
use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use schema::DataConfig;
use serde_json::json;

use crate::columns::parquet_file;
use crate::fixture::{Folder, config};

fn tsv() -> DataConfig {
    config(json!({
        "format": "tsv", "columns": ["y", "x", "c"], "label": {"column": "y"},
        "dense": [{"column": "x"}], "categorical": [{"column": "c", "kind": "hex"}],
    }))
}

fn member(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn zeros_between_and_after_gzip_members_are_skipped() {
    let folder = Folder::new();
    let rows = |content: Vec<u8>| {
        let inputs = [folder.file("a.gz", &content)];
        let prepared = folder.try_prepare("out", &inputs, &tsv(), None);
        drop(std::fs::remove_dir_all(folder.path("out")));
        prepared.map(|prepared| prepared.dataset.rows())
    };
    let (first, second) = (member("1\t2\tff\n0\t1\ta\n"), member("1\t2\tff\n"));
    // The last number of zeros exceeds the read buffer, which has 256 KiB.
    for zeros in [0, 1, 511, 300_000] {
        let zeros = vec![0; zeros];
        assert_eq!(rows([&first[..], &zeros].concat()).unwrap(), 2);
        assert_eq!(rows([&first[..], &zeros, &second, &zeros].concat()).unwrap(), 3);
    }
    let garbage = rows([&first[..], &[0; 100], b"rest"].concat()).unwrap_err();
    assert!(matches!(garbage, Error::Read { .. }), "{garbage}");
    let mut damaged = first.clone();
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    assert!(matches!(rows(damaged), Err(Error::Read { .. })));
    assert!(matches!(rows(first[..first.len() - 3].to_vec()), Err(Error::Read { .. })));
}

/// Scores `text`. Returns the lines of the scored samples, the number of samples with a label, and
/// the number of malformed records.
fn scored(text: &str, config: &DataConfig) -> (Vec<u64>, usize, u64) {
    let folder = Folder::new();
    let training = folder.file("train", b"1\t2\tff\n0\t1\ta\n");
    let fitted = folder.prepare("out", &[training], &tsv()).dataset.fitted().clone();
    let request = ScoreRequest {
        inputs: vec![folder.file("new", text.as_bytes())],
        config: config.clone(),
        fitted,
        features: FeaturePlan { columns: vec![("c".to_owned(), 100)] },
        batch_size: 100,
        pace: BlockPace::FullBlocks,
        strictness: Strictness::ANY,
        threads: 1,
    };
    let mut reader = read_for_scoring(request).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    let labeled = batch.batch.labels.iter().filter(|label| !label.is_nan()).count();
    (batch.lines, labeled, reader.losses().malformed_lines)
}

#[test]
fn the_first_row_alone_does_not_decide_whether_a_file_has_labels() {
    let csv = DataConfig { format: schema::source::DataFormat::Csv, ..tsv() };
    for (config, separator) in [(tsv(), "\t"), (csv, ",")] {
        let scored = |text: &str| scored(&text.replace('\t', separator), &config);
        let labeled = "1\t2\tff\n0\t1\ta\n1\t5\tb\n";
        let unlabeled = "2\tff\n1\ta\n5\tb\n";
        assert_eq!(scored(labeled), (vec![1, 2, 3], 3, 0));
        assert_eq!(scored(unlabeled), (vec![1, 2, 3], 0, 0));
        // The first text has a truncated row before labeled rows, and the second has a row with an
        // extra field before unlabeled rows.
        assert_eq!(scored(&format!("2\tff\n{labeled}")), (vec![2, 3, 4], 3, 1));
        assert_eq!(scored(&format!("1\t2\tff\n{unlabeled}")), (vec![2, 3, 4], 0, 1));
        assert_eq!(scored(&format!("7\n{labeled}")), (vec![2, 3, 4], 3, 1));
        assert_eq!(scored("2\tff\n"), (vec![1], 0, 0));
    }
}

/// Changes the codec in the metadata of every column of a file.
fn relabel(path: &Path, codec: parquet::basic::Compression) {
    let bytes = std::fs::read(path).unwrap();
    let whole = std::fs::File::open(path).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&whole).unwrap();
    let mut builder = metadata.into_builder();
    let mut groups = Vec::new();
    for group in builder.take_row_groups() {
        let columns = group
            .columns()
            .iter()
            .cloned()
            .map(|column| column.into_builder().set_compression(codec).build().unwrap());
        let columns = columns.collect();
        groups.push(group.into_builder().set_column_metadata(columns).build().unwrap());
    }
    let metadata = builder.set_row_groups(groups).build();
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&bytes[..bytes.len() - 8 - footer]).unwrap();
    ParquetMetaDataWriter::new(&mut file, &metadata).finish().unwrap();
}

#[test]
fn an_unsupported_codec_is_named_before_reading() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "parquet", "label": {"column": "y"}, "dense": [{"column": "x"}],
    }));
    for (codec, name) in [
        (parquet::basic::Compression::BROTLI(Default::default()), "Brotli"),
        (parquet::basic::Compression::LZO, "LZO"),
    ] {
        let column = || -> ArrayRef { Arc::new(Int64Array::from(vec![1, 0])) };
        let columns = vec![("unused", column()), ("y", column()), ("x", column())];
        let path = folder.path("a.parquet");
        let inputs = [parquet_file(&path, columns)];
        relabel(&path, codec);
        let error = folder.try_prepare("out", &inputs, &config, None).unwrap_err().to_string();
        let expected = "expected pages that are plain or compressed with Snappy, gzip, Zstandard";
        assert!(error.contains(&format!("a.parquet: column \"y\": {expected}")), "{error}");
        assert!(error.ends_with(&format!("got {name}")), "{error}");
    }
}
